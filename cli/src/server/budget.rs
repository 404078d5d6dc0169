//! Bytes that all requests together may hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::error::ApiError;

/// The budget of all requests.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    held: Arc<AtomicUsize>,
    limit: usize,
}

impl Budget {
    /// A budget of so many bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            held: Arc::default(),
            limit,
        }
    }

    /// A share of nothing yet.
    pub(super) fn share(&self) -> Share {
        Share {
            budget: self.clone(),
            bytes: 0,
        }
    }

    /// Bytes that are held.
    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }
}

/// What one request holds; it is given back when this is dropped.
#[derive(Debug)]
pub(super) struct Share {
    budget: Budget,
    bytes: usize,
}

impl Share {
    /// Bytes that it holds.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes more.
    pub(super) fn take(&mut self, bytes: usize) -> Result<(), ApiError> {
        let Budget { held, limit } = &self.budget;
        let grown = |now: usize| now.checked_add(bytes).filter(|sum| sum <= limit);
        held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown)
            .map_err(|_| ApiError::overloaded())?;
        self.bytes += bytes;
        Ok(())
    }

    /// Gives so many back.
    pub(super) fn give(&mut self, bytes: usize) {
        let surplus = self.bytes.min(bytes);
        self.budget.held.fetch_sub(surplus, Ordering::Relaxed);
        self.bytes -= surplus;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_all_shares_is_bounded_and_comes_back() {
        let budget = Budget::new(10);
        let (mut one, mut two) = (budget.share(), budget.share());
        assert!(one.take(6).is_ok() && two.take(4).is_ok());
        assert!(two.take(1).is_err() && one.take(usize::MAX).is_err());
        one.give(4);
        assert_eq!(budget.held(), 6);
        drop(one);
        assert!(two.take(6).is_ok());
        drop(two);
        assert_eq!(budget.held(), 0);
    }
}
