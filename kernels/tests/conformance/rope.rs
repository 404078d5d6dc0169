//! Rotary positions.

use std::rc::Rc;

use cider_kernels::{Backend, DType, RopeArgs, RopeConfig, RopeScaling, RopeTable};

use crate::cases::{ACTIVATIONS, Case, Failure, Fill, Matrix, Output, Prepared, Rng, filled};
use crate::compare::{Bounded, UNIT, within};

pub(crate) fn cases() -> Vec<Case> {
    let mut specs = Vec::new();
    for dtype in ACTIVATIONS {
        let base = Spec {
            dtype,
            rows: 3,
            heads: 2,
            head: 64,
            rotary: 64,
            axes: 1,
            fill: Fill::Normal,
        };
        let sizes = [
            (2, 2),
            (16, 16),
            (24, 24),
            (64, 64),
            (72, 72),
            (80, 80),
            (96, 96),
            (128, 128),
            (160, 160),
            (256, 256),
        ];
        let partial = [(64, 32), (80, 20), (96, 64), (31, 30), (17, 2), (128, 34)];
        let sizes = sizes.into_iter().chain(partial);
        specs.extend(sizes.map(|(head, rotary)| Spec {
            head,
            rotary,
            ..base
        }));
        specs.extend([1, 2, 9, 70].map(|rows| Spec { rows, ..base }));
        specs.extend([1, 3, 9].map(|heads| Spec { heads, ..base }));
        specs.extend([2, 3].map(|axes| Spec {
            axes,
            rows: 5,
            ..base
        }));
        specs.push(Spec {
            axes: 3,
            rows: 9,
            head: 80,
            rotary: 20,
            ..base
        });
        specs.push(Spec {
            rows: 9,
            fill: Fill::Mixed,
            ..base
        });
        specs.push(Spec {
            rows: 3,
            fill: Fill::Poisoned(f32::NAN),
            ..base
        });
    }
    let mut cases: Vec<Case> = specs.into_iter().map(Spec::case).collect();
    cases.extend(refusals());
    cases
}

pub(crate) fn perf_cases() -> Vec<Case> {
    let base = Spec {
        dtype: DType::Bf16,
        rows: 128,
        heads: 32,
        head: 128,
        rotary: 128,
        axes: 1,
        fill: Fill::Normal,
    };
    [base, Spec { rows: 1, ..base }].map(Spec::case).into()
}

#[derive(Clone, Copy)]
struct Spec {
    dtype: DType,
    rows: usize,
    heads: usize,
    head: usize,
    rotary: usize,
    /// Axes of positions, pairs dealt out to them in turn.
    axes: usize,
    fill: Fill,
}

impl Spec {
    fn case(self) -> Case {
        let Self {
            dtype,
            rows,
            heads,
            head,
            rotary,
            axes,
            fill,
        } = self;
        let name =
            format!("{dtype} {rows} x {heads} x {head}, {rotary} rotated, {axes} axes, {fill:?}");
        let elements = rows * heads * head;
        Case::new("rope", name, move |backend| self.prepare(backend))
            .twin(move |outputs| self.check(&outputs[0]))
            .work(2 * elements * dtype.size(), 3 * elements)
    }

    fn x(self) -> Vec<f32> {
        let mut rng = Rng::new(self.head as u64);
        filled(
            self.fill,
            self.dtype,
            (self.rows, self.heads * self.head),
            &mut rng,
        )
    }

    /// Positions in no order, the last of the table among them.
    fn positions(self) -> Vec<u32> {
        (0..self.axes * self.rows)
            .map(|i| (i * 37 + POSITIONS - 1) as u32 % POSITIONS as u32)
            .collect()
    }

    fn axes(self) -> Vec<u8> {
        if self.axes == 1 {
            return Vec::new();
        }
        (0..self.rotary / 2)
            .map(|pair| (pair % self.axes) as u8)
            .collect()
    }

    fn prepare(self, _: &dyn Backend) -> Result<Box<dyn Prepared>, Failure> {
        Ok(Box::new(Rope {
            x: Matrix::input(self.dtype, self.rows, self.heads * self.head, &self.x())?,
            positions: self.positions(),
            axes: self.axes(),
            head: self.head,
            table: Rc::new(table(self.rotary)?),
        }))
    }

    fn check(self, out: &Output) -> Result<f64, String> {
        let (x, positions, half) = (self.x(), self.positions(), self.rotary / 2);
        within(out, |row, col| {
            let (start, i) = (
                row * out.cols + col / self.head * self.head,
                col % self.head,
            );
            let element = |i: usize| f64::from(x[start + i]);
            if i >= self.rotary {
                return Bounded::exact(element(i));
            }
            let (pair, sign) = if i < half {
                (i + half, -1.0)
            } else {
                (i - half, 1.0)
            };
            let exponent = -2.0 * (i % half) as f64 / self.rotary as f64;
            let axis = i % half % self.axes;
            let position = positions[axis * self.rows + row];
            let angle = f64::from(position) * 10_000f64.powf(exponent);
            let (direct, crossed) = (element(i) * angle.cos(), element(pair) * angle.sin() * sign);
            // Cosine and sine are rounded once, the products and the sum once each.
            let magnitude = direct.abs() + crossed.abs();
            Bounded {
                value: direct + crossed,
                error: 4.0 * UNIT * magnitude + 2f64.powi(-148),
            }
        })
    }
}

struct Rope {
    x: Matrix,
    positions: Vec<u32>,
    axes: Vec<u8>,
    head: usize,
    table: Rc<RopeTable>,
}

impl Prepared for Rope {
    fn run(&mut self, backend: &dyn Backend) -> Result<(), Failure> {
        Ok(backend.rope(RopeArgs {
            x: self.x.view_mut(),
            head_size: self.head,
            positions: &self.positions,
            axes: &self.axes,
            table: &self.table,
        })?)
    }

    fn outputs(&self) -> Result<Vec<Output>, Failure> {
        Ok(vec![self.x.read("x")?])
    }
}

fn table(rotary_size: usize) -> Result<RopeTable, Failure> {
    let config = RopeConfig {
        base: 10_000.0,
        rotary_size,
        scaling: RopeScaling::Default,
        factors: None,
    };
    Ok(RopeTable::new(&config, POSITIONS)?)
}

fn refusals() -> Vec<Case> {
    let call_axes =
        |cols: usize, head_size: usize, positions: &'static [u32], axes: &'static [u8]| {
            move |backend: &dyn Backend| {
                let mut x = Matrix::input(DType::F32, 2, cols, &vec![1.0; 2 * cols])?;
                let (x, table) = (x.view_mut(), &table(16)?);
                Ok(backend.rope(RopeArgs {
                    x,
                    head_size,
                    positions,
                    axes,
                    table,
                })?)
            }
        };
    let call = |cols, head_size, positions| call_axes(cols, head_size, positions, &[]);
    vec![
        Case::refused(
            "rope",
            "too few axes",
            &["8", "1"],
            call_axes(32, 16, &[0, 1], &[0]),
        ),
        Case::refused(
            "rope",
            "positions of one axis for two",
            &["4", "2"],
            call_axes(32, 16, &[0, 1], &[0, 1, 0, 1, 0, 1, 0, 1]),
        ),
        Case::refused(
            "rope",
            "a position beyond the table",
            &["300", "300"],
            call(32, 16, &[0, 300]),
        ),
        Case::refused("rope", "too few positions", &["2", "1"], call(32, 16, &[0])),
        Case::refused(
            "rope",
            "a head below the rotary size",
            &["16", "8"],
            call(32, 8, &[0, 1]),
        ),
        Case::refused(
            "rope",
            "columns that heads do not divide",
            &["33", "16"],
            call(33, 16, &[0, 1]),
        ),
    ]
}

const POSITIONS: usize = 300;
