//! Slices as arrays: `slice::as_chunks`, which the least supported Rust does not have.

/// The arrays of `N` elements that a slice consists of, and the elements that are left.
#[inline(always)]
pub(super) const fn as_chunks<T, const N: usize>(slice: &[T]) -> (&[[T; N]], &[T]) {
    const { assert!(N > 0, "a chunk has elements") };
    let (whole, rest) = slice.split_at(slice.len() / N * N);
    // SAFETY: `whole` has that many times `N` elements, and an array is aligned as they are.
    let chunks = unsafe { core::slice::from_raw_parts(whole.as_ptr().cast(), whole.len() / N) };
    (chunks, rest)
}

#[cfg(test)]
mod tests {
    use super::as_chunks;

    #[test]
    fn chunks_cover_the_slice() {
        let all = [1, 2, 3, 4, 5, 6, 7];
        assert_eq!(
            as_chunks::<_, 3>(&all),
            (&[[1, 2, 3], [4, 5, 6]][..], &[7][..])
        );
        assert_eq!(as_chunks::<_, 8>(&all), (&[][..], &all[..]));
        assert_eq!(as_chunks::<_, 7>(&all), (&[all][..], &[][..]));
    }
}
