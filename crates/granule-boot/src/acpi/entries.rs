//! The entries behind the fields of a table: a byte of type, a byte of length, and so on.

/// Iterator over entries: the type of each, and its bytes from the type on.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    rest: &'a [u8],
    is_cut: bool,
}

impl<'a> Entries<'a> {
    /// The entries of a table, from this offset on.
    pub(super) fn behind(table: &'a [u8], at: usize) -> Self {
        Self {
            rest: table.get(at..).unwrap_or_default(),
            is_cut: false,
        }
    }

    /// Whether an entry had a length that cannot be. The walk ended there.
    #[must_use]
    pub const fn is_cut(&self) -> bool {
        self.is_cut
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let kind = *self.rest.first()?;
        let bytes = self.rest.get(1).copied().map_or(0, usize::from);
        match self.rest.split_at_checked(bytes) {
            Some((entry, rest)) if bytes >= 2 => {
                self.rest = rest;
                Some((kind, entry))
            }
            _ => {
                self.is_cut = true;
                self.rest = &[];
                None
            }
        }
    }
}
