//! A program that calls nothing of the library.

#![no_std]
#![no_main]

fn nothing(_: u64, _: u64, _: u64) -> u64 {
    0
}

text_size::program!(nothing);
