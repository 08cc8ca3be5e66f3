//! The settings of tables under test, one change of them at a time.

use granule::arch::tlbi::TlbCapabilities;

/// The settings of tables under test.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub live: bool,
    pub range: bool,
    pub level_hint: bool,
    pub repeat: bool,
    pub asid: Option<u16>,
    /// The level of FEAT_BBM that is set for the tables.
    pub bbm: u32,
    /// The physical address of the first page for tables.
    pub first: u64,
    pub pages: usize,
    /// Whether pages can be reserved. If not, the tree holds them.
    pub reserves: bool,
}

impl Setting {
    pub const PRIVATE: Self = Self {
        live: false,
        range: false,
        level_hint: false,
        repeat: false,
        asid: None,
        bbm: 0,
        first: 0x4000_0000,
        pages: if cfg!(miri) { 40 } else { 600 },
        reserves: true,
    };
    pub const LIVE: Self = Self {
        live: true,
        range: true,
        level_hint: true,
        ..Self::PRIVATE
    };

    pub const fn live(self, live: bool) -> Self {
        Self { live, ..self }
    }

    pub const fn range(self, range: bool) -> Self {
        Self { range, ..self }
    }

    pub const fn level_hint(self, level_hint: bool) -> Self {
        Self { level_hint, ..self }
    }

    pub const fn repeat(self, repeat: bool) -> Self {
        Self { repeat, ..self }
    }

    pub const fn bbm(self, bbm: u32) -> Self {
        Self { bbm, ..self }
    }

    pub const fn reserves(self, reserves: bool) -> Self {
        Self { reserves, ..self }
    }

    pub const fn capabilities(&self) -> TlbCapabilities {
        TlbCapabilities {
            range: self.range,
            level_hint: self.level_hint,
            repeat: self.repeat,
        }
    }
}
