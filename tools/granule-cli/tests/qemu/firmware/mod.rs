//! Boots through firmware: EDK2 and U-Boot start the same image, and U-Boot's lines in docs/booting.md are those
//! that are typed at its prompt. Boots with boot loaders from a disk are in `granule-peers`, because apt has to
//! fetch the loaders.

mod edk2;

/// Typed keys come when the host runs this program.
mod live {
    mod u_boot;
}
