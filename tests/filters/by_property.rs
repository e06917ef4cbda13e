//! Lets a message through if it has the property region with the value eu.
//!
//! rustc --target wasm32-unknown-unknown --crate-type cdylib -O by_property.rs

use std::alloc::{alloc, Layout};

#[no_mangle]
pub extern "C" fn raftmq_allocate(size: usize) -> *mut u8 {
    match Layout::from_size_align(size, 8) {
        Ok(layout) => unsafe { alloc(layout) },
        Err(_) => std::ptr::null_mut(),
    }
}

#[no_mangle]
pub unsafe extern "C" fn raftmq_filter(
    properties: *const u8,
    size: usize,
    _body: *const u8,
    _body_size: usize,
) -> i32 {
    let properties = std::slice::from_raw_parts(properties, size);
    properties
        .split(|byte| *byte == 2)
        .any(|property| property == b"region\x01eu") as i32
}
