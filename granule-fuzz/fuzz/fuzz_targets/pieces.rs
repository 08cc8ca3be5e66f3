#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some(run) = granule_fuzz::target("pieces") {
        run(bytes);
    }
});
