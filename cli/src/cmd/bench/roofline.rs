//! How long work takes at least.

use cider_kernels::Ceilings;
use serde::Serialize;

/// The unit that work keeps busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Unit {
    Int8,
    Bf16,
    F32,
    /// Nothing but moving bytes.
    Memory,
}

impl Unit {
    /// Operations per second; bf16 is computed in f32 where there is no instruction for it.
    pub(super) fn peak(self, ceilings: &Ceilings) -> Option<f64> {
        match self {
            Self::Int8 => Some(ceilings.int8),
            Self::Bf16 => Some(ceilings.bf16.unwrap_or(ceilings.f32)),
            Self::F32 => Some(ceilings.f32),
            Self::Memory => None,
        }
    }
}

/// What work consists of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    pub(super) unit: Unit,
    /// A multiplication and an addition are two.
    pub(super) operations: f64,
    /// Operations of another unit, which keep nobody busy at the same time.
    pub(super) others: (Unit, f64),
    /// Bytes that have to come from memory or go there.
    pub(super) bytes: f64,
}

impl Cost {
    /// Of what is not known.
    pub(super) const NOTHING: Self = Self {
        unit: Unit::Memory,
        operations: 0.0,
        others: (Unit::Memory, 0.0),
        bytes: 0.0,
    };

    /// This and then the next, of two units at most.
    pub(super) fn then(self, next: Self) -> Self {
        let parts = [
            (self.unit, self.operations),
            self.others,
            (next.unit, next.operations),
            next.others,
        ];
        let mut parts = parts
            .into_iter()
            .filter(|(_, operations)| *operations > 0.0);
        let bytes = self.bytes + next.bytes;
        let mut sum = Self {
            bytes,
            ..Self::NOTHING
        };
        if let Some(first) = parts.next() {
            (sum.unit, sum.operations) = first;
        }
        for (unit, operations) in parts {
            if unit == sum.unit {
                sum.operations += operations;
            } else {
                sum.others = (unit, sum.others.1 + operations);
            }
        }
        sum
    }

    /// Operations on INT8 and on floats.
    pub(super) fn split(&self) -> (f64, f64) {
        let all = [(self.unit, self.operations), self.others];
        let int8 = all.iter().filter(|(unit, _)| *unit == Unit::Int8);
        let int8 = int8.map(|(_, operations)| operations).sum();
        (int8, self.all_operations() - int8)
    }

    /// Operations of all units.
    pub(super) fn all_operations(&self) -> f64 {
        self.operations + self.others.1
    }

    /// Seconds that the operations take at the peaks.
    pub(super) fn computing(&self, ceilings: &Ceilings) -> f64 {
        let parts = [(self.unit, self.operations), self.others];
        parts
            .into_iter()
            .filter_map(|(unit, operations)| Some(operations / unit.peak(ceilings)?))
            .sum()
    }

    /// Seconds that the bytes take.
    pub(super) fn reading(&self, ceilings: &Ceilings) -> f64 {
        self.bytes / ceilings.read
    }

    /// The longer of the two.
    pub(super) fn least(&self, ceilings: &Ceilings) -> f64 {
        self.computing(ceilings).max(self.reading(ceilings))
    }

    /// Whether memory may be what the work waits for.
    pub(super) fn is_memory_bound(&self, ceilings: &Ceilings) -> bool {
        4.0 * self.reading(ceilings) > self.computing(ceilings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(unit: Unit, operations: f64, bytes: f64) -> Cost {
        Cost {
            unit,
            operations,
            bytes,
            ..Cost::NOTHING
        }
    }

    #[test]
    fn the_longer_of_reading_and_computing_counts() {
        let ceilings = Ceilings {
            int8: 1000.0,
            bf16: None,
            f32: 100.0,
            read: 10.0,
        };
        assert_eq!(cost(Unit::Int8, 2000.0, 10.0).least(&ceilings), 2.0);
        assert_eq!(cost(Unit::Int8, 2000.0, 30.0).least(&ceilings), 3.0);
        assert_eq!(cost(Unit::Bf16, 200.0, 1.0).least(&ceilings), 2.0);
        assert_eq!(cost(Unit::Memory, 0.0, 5.0).least(&ceilings), 0.5);
        assert!(cost(Unit::Int8, 1000.0, 3.0).is_memory_bound(&ceilings));
        assert!(!cost(Unit::Int8, 1000.0, 2.0).is_memory_bound(&ceilings));
    }

    #[test]
    fn units_that_follow_each_other_add_up() {
        let ceilings = Ceilings {
            int8: 1000.0,
            bf16: Some(200.0),
            f32: 100.0,
            read: 10.0,
        };
        let reading = cost(Unit::Memory, 0.0, 5.0);
        let both = reading
            .then(cost(Unit::Bf16, 400.0, 0.0))
            .then(cost(Unit::Int8, 3000.0, 1.0))
            .then(cost(Unit::Bf16, 200.0, 0.0));
        assert_eq!((both.unit, both.bytes), (Unit::Bf16, 6.0));
        assert_eq!(both.all_operations(), 3600.0);
        assert_eq!(both.least(&ceilings), 6.0);
    }
}
