//! Leaving for the next kernel, and arriving in it.

pub(crate) mod note;
