//! Memory that several threads write at once, each its own part.

use std::marker::PhantomData;

use crate::dtype::Element;

/// A slice whose elements threads write without overlap.
#[derive(Clone, Copy)]
pub(super) struct Shared<'a, T> {
    pointer: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: every access is through an unsafe method whose caller promises that no two threads touch the same
// element while one of them writes.
unsafe impl<T: Element> Send for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for Shared<'_, T> {}

impl<'a, T: Element> Shared<'a, T> {
    pub(super) fn new(slice: &'a mut [T]) -> Self {
        Self {
            pointer: slice.as_mut_ptr(),
            len: slice.len(),
            slice: PhantomData,
        }
    }

    /// A pointer to element `index`, which must exist or be the end.
    ///
    /// # Safety
    /// `index <= len`; nobody else touches what is written through it.
    #[inline(always)]
    pub(super) unsafe fn at(self, index: usize) -> *mut T {
        debug_assert!(index <= self.len, "{index} of {}", self.len);
        // SAFETY: the caller promises the range.
        unsafe { self.pointer.add(index) }
    }

    /// Writes one element.
    ///
    /// # Safety
    /// `index < len`, and nobody else touches it.
    pub(super) unsafe fn write(self, index: usize, value: T) {
        debug_assert!(index < self.len, "{index} of {}", self.len);
        // SAFETY: the caller promises the range.
        unsafe { self.pointer.add(index).write(value) }
    }
}
