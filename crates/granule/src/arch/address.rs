//! Physical, virtual and intermediate addresses, printed in hexadecimal.
//!
//! Arithmetic is that of the number (`address.0.checked_add(bytes)`), which says what happens at
//! the ends of the address space, so there is no `+` and no `-` here. This file depends on no page
//! size and no address space.

use core::fmt;

macro_rules! address_type {
    ($(#[$about:meta])* $name:ident) => {
        $(#[$about])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(transparent)]
        pub struct $name(pub u64);

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

impl PhysicalAddress {
    /// The address `bytes` above this one, modulo 2⁶⁴.
    #[inline]
    pub(crate) const fn wrapping_add(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl VirtualAddress {
    /// The address `bytes` above this one, modulo 2⁶⁴.
    #[inline]
    pub(crate) const fn wrapping_add(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}
