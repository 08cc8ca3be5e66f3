//! Tables under test that are private or live, as a test's case says. Only tests may use this:
//! nothing walks their tables, so nobody needs to vouch for a change.

use granule::arch::Page;
use granule::table::{Live, PageTables, TableEnvironment};
use std::ops::{Deref, DerefMut};

/// Tables that no CPU walks, also when they count as live.
#[derive(Debug)]
pub enum Held<P: Page, E> {
    Private(PageTables<P, E>),
    Live(Live<PageTables<P, E>>),
}

impl<P: Page, E: TableEnvironment> Held<P, E> {
    /// The tables, live if `live` says so.
    pub fn new(tables: PageTables<P, E>, live: bool) -> Self {
        if live {
            // SAFETY: no CPU walks the tables in spite of the call.
            Self::Live(unsafe { tables.make_live() })
        } else {
            Self::Private(tables)
        }
    }
}

impl<P: Page, E> Deref for Held<P, E> {
    type Target = PageTables<P, E>;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Private(tables) => tables,
            Self::Live(tables) => tables,
        }
    }
}

impl<P: Page, E> DerefMut for Held<P, E> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Private(tables) => tables,
            // SAFETY: no CPU walks the tables.
            Self::Live(tables) => unsafe { tables.changes() },
        }
    }
}
