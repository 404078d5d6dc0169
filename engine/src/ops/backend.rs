//! The backend that functions over plain arrays run on.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

use cider_kernels::{Backend, CpuBackend};

use crate::error::Result;

/// The backend that [`ops`](crate::ops) and new layers use: that of the innermost [`with_backend`] of this
/// thread, else one CPU backend that all share. It is made on the first call; `CIDER_CPU` forces its
/// instruction set and `CIDER_THREADS` its threads.
///
/// # Errors
/// When one of the two variables cannot be honoured.
pub fn default_backend() -> Result<Arc<dyn Backend>> {
    if let Some(chosen) = CHOSEN.with_borrow(|chosen| chosen.last().cloned()) {
        return Ok(chosen);
    }
    if let Some(shared) = SHARED.get() {
        return Ok(Arc::clone(shared));
    }
    // Two threads may both come here; what one of them made is then dropped.
    let made: Arc<dyn Backend> = Arc::new(CpuBackend::from_env(None)?);
    Ok(Arc::clone(SHARED.get_or_init(|| made)))
}

/// Runs `body` with another backend in the place of the shared one, on this thread alone. A layer that is
/// made inside keeps the backend.
///
/// ```
/// use std::sync::Arc;
///
/// use cider::ops::{Matrix, int8_matmul_int32, with_backend};
/// use cider::{CpuBackend, Isa};
///
/// let one = Matrix::new(&[2_i8, 3], 1, 2)?;
/// let portable = Arc::new(CpuBackend::new(Isa::Scalar, 1)?);
/// assert_eq!(with_backend(portable, || int8_matmul_int32(one, one))?, [13]);
/// # Ok::<(), cider::Error>(())
/// ```
pub fn with_backend<R>(backend: Arc<dyn Backend>, body: impl FnOnce() -> R) -> R {
    /// Takes the backend away however `body` ends.
    struct Restore;

    impl Drop for Restore {
        fn drop(&mut self) {
            CHOSEN.with_borrow_mut(Vec::pop);
        }
    }

    CHOSEN.with_borrow_mut(|chosen| chosen.push(backend));
    let _restore = Restore;
    body()
}

static SHARED: OnceLock<Arc<dyn Backend>> = OnceLock::new();

thread_local! {
    static CHOSEN: RefCell<Vec<Arc<dyn Backend>>> = const { RefCell::new(Vec::new()) };
}

#[cfg(test)]
mod tests {
    use cider_kernels::Isa;

    use super::*;

    #[test]
    fn the_innermost_backend_counts_and_ends_with_its_body() {
        let describe = || default_backend().unwrap().describe();
        let scalar = |threads| Arc::new(CpuBackend::new(Isa::Scalar, threads).unwrap());
        let shared = describe();
        with_backend(scalar(1), || {
            assert!(describe().contains("scalar, 1"), "{}", describe());
            with_backend(scalar(3), || assert!(describe().contains("scalar, 3")));
            assert!(describe().contains("scalar, 1"));
            let elsewhere = std::thread::spawn(move || default_backend().unwrap().describe());
            assert_eq!(elsewhere.join().unwrap(), shared);
        });
        let panicked = std::panic::catch_unwind(|| with_backend(scalar(1), || panic!("as asked")));
        assert!(panicked.is_err());
        assert_eq!(describe(), default_backend().unwrap().describe());
        assert!(CHOSEN.with_borrow(Vec::is_empty));
    }
}
