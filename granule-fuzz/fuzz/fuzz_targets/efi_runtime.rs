#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some(run) = granule_fuzz::target("efi_runtime") {
        run(bytes);
    }
});
