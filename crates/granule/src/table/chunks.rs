//! Slices as arrays: `slice::as_chunks`, which the least supported Rust does not have.

#![allow(unsafe_code, reason = "slices as slices of arrays")]

/// The arrays of `N` elements that a slice consists of, and the elements that are left.
#[inline(always)]
pub(super) const fn as_chunks<T, const N: usize>(slice: &[T]) -> (&[[T; N]], &[T]) {
    const { assert!(N > 0, "a chunk has elements") };
    let (whole, rest) = match slice.split_at_checked(slice.len() / N * N) {
        Some(parts) => parts,
        // Never: a quotient times its divisor is at most the dividend.
        None => return (&[], slice),
    };
    // SAFETY: `whole` has that many times `N` elements, and an array is aligned as they are.
    let chunks = unsafe { core::slice::from_raw_parts(whole.as_ptr().cast(), whole.len() / N) };
    (chunks, rest)
}

/// As [`as_chunks`], to change the elements.
#[inline(always)]
pub(super) fn as_chunks_mut<T, const N: usize>(slice: &mut [T]) -> (&mut [[T; N]], &mut [T]) {
    const { assert!(N > 0, "a chunk has elements") };
    let at = slice.len() / N * N;
    // SAFETY: a quotient times its divisor is at most the dividend.
    let (whole, rest) = unsafe { slice.split_at_mut_unchecked(at) };
    let count = whole.len() / N;
    // SAFETY: as in `as_chunks`; `whole` is borrowed for as long as the chunks are.
    let chunks = unsafe { core::slice::from_raw_parts_mut(whole.as_mut_ptr().cast(), count) };
    (chunks, rest)
}

#[cfg(test)]
mod tests {
    use super::{as_chunks, as_chunks_mut};

    #[test]
    fn chunks_cover_the_slice() {
        let all = [1, 2, 3, 4, 5, 6, 7];
        assert_eq!(
            as_chunks::<_, 3>(&all),
            (&[[1, 2, 3], [4, 5, 6]][..], &[7][..])
        );
        assert_eq!(as_chunks::<_, 8>(&all), (&[][..], &all[..]));
        assert_eq!(as_chunks::<_, 7>(&all), (&[all][..], &[][..]));
        let mut all = all;
        let (chunks, rest) = as_chunks_mut::<_, 3>(&mut all);
        chunks[1] = [0; 3];
        rest[0] = 9;
        assert_eq!(all, [1, 2, 3, 0, 0, 0, 9]);
    }
}
