//! The data of the page.

use super::*;
