//! Physical, virtual and intermediate addresses: printed in hexadecimal, with arithmetic that cannot
//! panic.
//!
//! All types have the same operations. An operation whose result may not fit returns an `Option`
//! or names the behaviour in its own name, so there is no `+` and no `-`. This file depends on no
//! page size and no address space: alignment is to any number of bytes.

use core::fmt;

macro_rules! address_type {
    ($(#[$about:meta])* $name:ident) => {
        $(#[$about])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// The address `bytes` above this one, if there is one.
            #[must_use]
            #[inline]
            pub const fn checked_add(self, bytes: u64) -> Option<Self> {
                match self.0.checked_add(bytes) {
                    Some(sum) => Some(Self(sum)),
                    None => None,
                }
            }

            /// The address `bytes` below this one, if there is one.
            #[must_use]
            #[inline]
            pub const fn checked_sub(self, bytes: u64) -> Option<Self> {
                match self.0.checked_sub(bytes) {
                    Some(difference) => Some(Self(difference)),
                    None => None,
                }
            }

            /// The address `bytes` above this one, modulo 2⁶⁴.
            #[must_use]
            #[inline]
            pub const fn wrapping_add(self, bytes: u64) -> Self {
                Self(self.0.wrapping_add(bytes))
            }

            /// The address `bytes` below this one, modulo 2⁶⁴.
            #[must_use]
            #[inline]
            pub const fn wrapping_sub(self, bytes: u64) -> Self {
                Self(self.0.wrapping_sub(bytes))
            }

            /// The address `bytes` above this one, or the highest address.
            #[must_use]
            #[inline]
            pub const fn saturating_add(self, bytes: u64) -> Self {
                Self(self.0.saturating_add(bytes))
            }

            /// The address `bytes` below this one, or address zero.
            #[must_use]
            #[inline]
            pub const fn saturating_sub(self, bytes: u64) -> Self {
                Self(self.0.saturating_sub(bytes))
            }

            /// The bytes from `origin` up to this address; `None` if this address is below it.
            #[must_use]
            #[inline]
            pub const fn offset_from(self, origin: Self) -> Option<u64> {
                self.0.checked_sub(origin.0)
            }

            /// The highest multiple of `bytes` that is not above this address. Nothing is a
            /// multiple of zero bytes: the address then stays as it is.
            #[must_use]
            #[inline]
            pub const fn align_down(self, bytes: u64) -> Self {
                match self.0.checked_rem(bytes) {
                    Some(rest) => Self(self.0 - rest),
                    None => self,
                }
            }

            /// The lowest multiple of `bytes` that is not below this address, if there is one.
            #[must_use]
            #[inline]
            pub const fn align_up(self, bytes: u64) -> Option<Self> {
                match self.0.checked_rem(bytes) {
                    Some(0) => Some(self),
                    Some(rest) => self.checked_add(bytes - rest),
                    None => None,
                }
            }

            /// Whether this address is a multiple of `bytes`.
            #[must_use]
            #[inline]
            pub const fn is_aligned(self, bytes: u64) -> bool {
                matches!(self.0.checked_rem(bytes), Some(0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }

        /// As `{:#x}`: with `0x`.
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }

        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }

        impl fmt::UpperHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::UpperHex::fmt(&self.0, f)
            }
        }

        impl From<u64> for $name {
            #[inline]
            fn from(address: u64) -> Self {
                Self(address)
            }
        }

        impl From<$name> for u64 {
            fn from(address: $name) -> Self {
                address.0
            }
        }
    };
}

address_type! {
    /// A physical address (the output of stage 1, or of stage 2).
    PhysicalAddress
}

address_type! {
    /// A virtual address (the input of stage 1).
    VirtualAddress
}

address_type! {
    /// An intermediate physical address (IPA): what a guest takes for a physical address (the output
    /// of its stage 1, the input of stage 2).
    IntermediateAddress
}
