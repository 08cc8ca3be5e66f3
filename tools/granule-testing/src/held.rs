//! Tables under test that are private or live, by the test's case. Only tests may use this: nothing
//! walks their tables, so nobody needs to vouch for a change.

#![allow(unsafe_code, reason = "no CPU walks the tables")]

use granule::arch::PageChoice;
use granule::table::{Live, PageTables, Stage, Stage1, TableEnvironment};
use std::ops::{Deref, DerefMut};

/// Tables that no CPU walks, also when they count as live.
#[derive(Debug)]
pub enum Held<P: PageChoice, E, S: Stage = Stage1> {
    Private(PageTables<P, E, S>),
    Live(Live<PageTables<P, E, S>>),
}

impl<P: PageChoice, E: TableEnvironment, S: Stage> Held<P, E, S> {
    pub fn new(tables: PageTables<P, E, S>, live: bool) -> Self {
        if live {
            // SAFETY: no CPU walks the tables in spite of the call.
            Self::Live(unsafe { tables.make_live() })
        } else {
            Self::Private(tables)
        }
    }
}

impl<P: PageChoice, E, S: Stage> Deref for Held<P, E, S> {
    type Target = PageTables<P, E, S>;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Private(tables) => tables,
            Self::Live(tables) => tables,
        }
    }
}

impl<P: PageChoice, E, S: Stage> DerefMut for Held<P, E, S> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Private(tables) => tables,
            // SAFETY: no CPU walks the tables.
            Self::Live(tables) => unsafe { tables.changes() },
        }
    }
}
