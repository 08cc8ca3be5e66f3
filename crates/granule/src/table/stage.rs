//! The two stages of translation as types, so that one engine serves both.
//!
//! [`PageTables`](super::PageTables) is generic over a [`Stage`], which the compiler folds as it
//! does the page size. A stage gives the types of addresses, attributes and permission changes, and
//! their meaning as descriptor bits. The rules of live changes that differ between the stages are in
//! [`arch::bbm`](crate::arch::bbm) and [`flush`](super::flush), which ask the geometry.

use super::{BitChange, PermissionChange};
use crate::arch::{
    Attributes, Descriptor, Geometry, IntermediateAddress, Stage2Attributes, Stage2Geometry,
    VirtualAddress,
};
use core::fmt;

/// A stage of translation.
///
/// Sealed: the architecture has two.
pub trait Stage: sealed::Sealed + Copy + fmt::Debug + Send + Sync + 'static {
    /// The addresses that the tables translate.
    type Input: Copy + fmt::Debug + fmt::Display + Eq + Ord;
    /// The shape of the address space.
    type Geometry: Copy + fmt::Debug + Into<Geometry>;
    /// Everything in a leaf besides its address.
    type Attributes: Copy + fmt::Debug + Eq;
    /// A change that needs no break-before-make.
    type PermissionChange: Copy + fmt::Debug + Eq;

    /// Whether the root may be several tables that follow each other in memory.
    #[doc(hidden)]
    const CONCATENATED: bool;

    /// An address of this stage as the type that the engine and its errors use for both.
    #[doc(hidden)]
    fn address(input: Self::Input) -> VirtualAddress;
    /// The inverse of [`address`](Self::address).
    #[doc(hidden)]
    fn input(address: VirtualAddress) -> Self::Input;
    /// The attributes as bits of a leaf descriptor.
    #[doc(hidden)]
    fn encode(attributes: &Self::Attributes, geometry: &Geometry) -> u64;
    /// The attributes of a leaf descriptor.
    #[doc(hidden)]
    fn decode(descriptor: Descriptor, geometry: &Geometry) -> Self::Attributes;
    /// The change as descriptor bits.
    #[doc(hidden)]
    fn bits(change: Self::PermissionChange, geometry: &Geometry) -> BitChange;
}

/// Stage 1: virtual addresses of a kernel, a hypervisor, firmware or a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a type without values to hold")]
pub struct Stage1;

/// Stage 2: intermediate physical addresses of a virtual machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a type without values to hold")]
pub struct Stage2;

impl Stage for Stage1 {
    type Input = VirtualAddress;
    type Geometry = Geometry;
    type Attributes = Attributes;
    type PermissionChange = PermissionChange;

    const CONCATENATED: bool = false;

    #[inline(always)]
    fn address(input: VirtualAddress) -> VirtualAddress {
        input
    }

    #[inline(always)]
    fn input(address: VirtualAddress) -> VirtualAddress {
        address
    }

    #[inline(always)]
    fn encode(attributes: &Attributes, geometry: &Geometry) -> u64 {
        attributes.encode(geometry)
    }

    #[inline(always)]
    fn decode(descriptor: Descriptor, geometry: &Geometry) -> Attributes {
        Attributes::decode(descriptor, geometry)
    }

    #[inline(always)]
    fn bits(change: PermissionChange, geometry: &Geometry) -> BitChange {
        change.bits(geometry.regime())
    }
}

impl Stage for Stage2 {
    type Input = IntermediateAddress;
    type Geometry = Stage2Geometry;
    type Attributes = Stage2Attributes;
    type PermissionChange = super::stage2::Stage2PermissionChange;

    const CONCATENATED: bool = true;

    fn address(input: IntermediateAddress) -> VirtualAddress {
        VirtualAddress(input.0)
    }

    fn input(address: VirtualAddress) -> IntermediateAddress {
        IntermediateAddress(address.0)
    }

    fn encode(attributes: &Stage2Attributes, geometry: &Geometry) -> u64 {
        attributes.encode_in(geometry)
    }

    fn decode(descriptor: Descriptor, geometry: &Geometry) -> Stage2Attributes {
        Stage2Attributes::decode_in(descriptor, geometry)
    }

    fn bits(change: Self::PermissionChange, geometry: &Geometry) -> BitChange {
        change.bits(geometry)
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Stage1 {}
    impl Sealed for super::Stage2 {}
}
