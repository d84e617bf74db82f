//! The unwinder of a program that cannot unwind: it never finds a frame.
//!
//! The guest aborts on a panic, and `glowplug.ld` drops its unwind tables, so there is no stack that anybody could walk.
//! The standard library does not know this. For a panic's backtrace it links an unwinder, and readers of ELF, DWARF and
//! zlib to name the frames: a quarter of 1 MiB for a list that is always empty. These are all functions that it needs of
//! an unwinder. They come with the program, not from a library, so the optimizer sees that no frame ever follows, and
//! drops all that would have described one. The panic's message, place and abort stay.
//!
//! Where panics unwind this crate is empty.

#![no_std]

#[cfg(panic = "abort")]
mod symbols {
    use core::ffi::{c_int, c_void};

    /// `_URC_END_OF_STACK` of the Itanium C++ ABI, "Exception Handling", 1.3.
    const END_OF_STACK: c_int = 5;

    #[unsafe(no_mangle)]
    extern "C" fn _Unwind_Backtrace(_frame: *const c_void, _argument: *mut c_void) -> c_int {
        END_OF_STACK
    }

    /// What only a frame or an exception in flight could be asked, and there is none.
    macro_rules! never_called {
        ($($name:ident)*) => {
            $(#[unsafe(no_mangle)]
            extern "C" fn $name() -> ! {
                unreachable!()
            })*
        };
    }

    never_called! {
        _Unwind_GetDataRelBase
        _Unwind_GetIP
        _Unwind_GetIPInfo
        _Unwind_GetLanguageSpecificData
        _Unwind_GetRegionStart
        _Unwind_GetTextRelBase
        _Unwind_Resume
        _Unwind_SetGR
        _Unwind_SetIP
    }
}
