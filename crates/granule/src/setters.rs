//! A macro that writes one setter for each field of a struct that may grow (`#[non_exhaustive]`),
//! because code outside the crate cannot write such a struct as a literal. It decides no value.

/// Writes `const fn field(self, value) -> Self` for the named fields. A field that is declared as
/// `Some` is set to `Some(value)`.
macro_rules! setters {
    ($($field:ident: Some($type:ty)),+ $(,)?) => {
        $(
            #[doc = concat!("Sets [`", stringify!($field), "`](Self#structfield.", stringify!($field), ") to `Some`.")]
            #[must_use]
            #[inline]
            pub const fn $field(mut self, $field: $type) -> Self {
                self.$field = Some($field);
                self
            }
        )+
    };
    ($($field:ident: $type:ty),+ $(,)?) => {
        $(
            #[doc = concat!("Sets [`", stringify!($field), "`](Self#structfield.", stringify!($field), ").")]
            #[must_use]
            #[inline]
            pub const fn $field(mut self, $field: $type) -> Self {
                self.$field = $field;
                self
            }
        )+
    };
}
pub(crate) use setters;
