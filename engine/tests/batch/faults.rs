//! A request that makes the program go wrong fails alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cider::{Backend, DType, Error, Format, Scheme};
use cider_kernels::{
    AttentionArgs, Gelu, KvAppendArgs, LinearArgs, NormArgs, QuantizedRows, RopeArgs, RowSource,
    RowsOut, TensorMut, TensorRef, Weights,
};

use crate::machine::best;
use crate::support::{Folder, Running, Size, engine_options, f_tiny, ids, open, open_on, request};

type Result<T> = std::result::Result<T, cider_kernels::Error>;

/// A backend that panics in the middle of a step that has two certain tokens in it.
#[derive(Debug)]
struct Faulty {
    inner: Arc<dyn Backend>,
    /// Products of linear layers until the next panic; none while it is zero.
    fuse: AtomicUsize,
}

impl Faulty {
    /// Burns down while rows of a bad step go through the layers.
    fn burn(&self) {
        let left = self.fuse.load(Ordering::Relaxed);
        self.fuse.store(left.saturating_sub(1), Ordering::Relaxed);
        assert!(left != 1, "a kernel went wrong");
    }
}

impl Backend for Faulty {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn quantized_rows(&self, capacity: usize, cols: usize) -> Result<QuantizedRows> {
        self.inner.quantized_rows(capacity, cols)
    }

    fn weights(&self, format: Format, n: usize, k: usize) -> Result<Weights> {
        self.inner.weights(format, n, k)
    }

    fn fill_weights(
        &self,
        weights: &mut Weights,
        first: usize,
        count: usize,
        source: RowSource<'_>,
    ) -> Result<()> {
        self.inner.fill_weights(weights, first, count, source)
    }

    fn set_bias(&self, weights: &mut Weights, first: usize, bias: &[f32]) -> Result<()> {
        self.inner.set_bias(weights, first, bias)
    }

    fn read_row(&self, weights: &Weights, row: usize, out: &mut [f32]) -> Result<()> {
        self.inner.read_row(weights, row, out)
    }

    fn read_integers(
        &self,
        weights: &Weights,
        row: usize,
        out: &mut [i8],
        scales: &mut [f32],
    ) -> Result<()> {
        self.inner.read_integers(weights, row, out, scales)
    }

    fn quantize(&self, x: TensorRef<'_>, out: &mut QuantizedRows) -> Result<()> {
        self.inner.quantize(x, out)
    }

    fn linear(&self, args: LinearArgs<'_>) -> Result<()> {
        self.burn();
        self.inner.linear(args)
    }

    fn matmul_i32(
        &self,
        input: &QuantizedRows,
        weights: &Weights,
        out: TensorMut<'_>,
    ) -> Result<()> {
        self.inner.matmul_i32(input, weights, out)
    }

    fn norm(&self, args: NormArgs<'_>) -> Result<()> {
        self.inner.norm(args)
    }

    fn rope(&self, args: RopeArgs<'_>) -> Result<()> {
        self.inner.rope(args)
    }

    fn kv_append(&self, args: KvAppendArgs<'_>) -> Result<()> {
        self.inner.kv_append(args)
    }

    fn attention(&self, args: AttentionArgs<'_>) -> Result<()> {
        self.inner.attention(args)
    }

    fn gated(&self, gate: TensorRef<'_>, up: TensorRef<'_>, out: RowsOut<'_>) -> Result<()> {
        self.inner.gated(gate, up, out)
    }

    fn gelu(&self, x: TensorRef<'_>, kind: Gelu, out: TensorMut<'_>) -> Result<()> {
        self.inner.gelu(x, kind, out)
    }

    fn add(&self, x: TensorMut<'_>, y: TensorRef<'_>) -> Result<()> {
        self.inner.add(x, y)
    }

    fn copy(&self, x: TensorRef<'_>, out: TensorMut<'_>) -> Result<()> {
        self.inner.copy(x, out)
    }

    fn embedding(&self, table: &Weights, ids: &[u32], out: TensorMut<'_>) -> Result<()> {
        let fuse = if ids.windows(2).any(|pair| pair == PAIR) {
            FUSE
        } else {
            0
        };
        self.fuse.store(fuse, Ordering::Relaxed);
        self.inner.embedding(table, ids, out)
    }

    fn argmax(&self, x: TensorRef<'_>, out: &mut [u32]) -> Result<()> {
        self.inner.argmax(x, out)
    }
}

/// The tokens that make a step panic, one behind the other.
const PAIR: [u32; 2] = [499, 498];

/// The token whose logits are not finite.
const BAD: u32 = 499;

/// Linear layers that are done before.
const FUSE: usize = 6;

fn good(seed: u64, count: usize) -> Vec<u32> {
    ids(seed, count).into_iter().map(|id| id % 499).collect()
}

/// A step that panics is taken again, request by request: only the one that panics again fails.
#[test]
fn a_panic_fails_only_the_request_that_panics_alone() {
    let mut lone = Running::new(open(f_tiny(), Size::LARGE));
    let backend = Arc::new(Faulty {
        inner: best(),
        fuse: AtomicUsize::new(0),
    });
    let options = engine_options(Scheme::W8A8, DType::Bf16, 64);
    let size = Size {
        rows: 64,
        ..Size::LARGE
    };
    let mut engine = Running::new(open_on(f_tiny(), backend, &options, size));
    let asked: Vec<_> = (0..5)
        .map(|seed| engine.submit(request(good(seed, 100), 40)))
        .collect();
    for _ in 0..10 {
        engine.step();
    }
    // In the third chunk of its prompt.
    let mut prompt = good(77, 180);
    prompt[170..172].copy_from_slice(&PAIR);
    let bad = engine.submit(request(prompt, 10));
    engine.run();
    let found = engine.taken(bad);
    assert!(matches!(found.error, Some(Error::Panicked(_))), "{found:?}");
    assert!(!found.progress.is_empty());
    assert!(engine.engine.stats().panics >= 2);
    for (seed, id) in asked.into_iter().enumerate() {
        let expected = lone.alone(request(good(seed as u64, 100), 40));
        engine
            .taken(id)
            .assert_same(&expected, &format!("request {seed}"));
    }
    // What the failed one computed before is good, and remembered.
    let mut prompt = good(77, 180);
    prompt.truncate(150);
    let after = engine.submit(request(prompt.clone(), 20));
    let after = engine.answer(after);
    assert!(after.started.unwrap() >= 64);
    after.assert_same(&lone.alone(request(prompt, 20)), "after the panic");
}

/// Logits that are not finite end their request, and only that one.
#[test]
fn logits_that_are_not_finite_end_their_request_alone() {
    let folder = Folder::f_tiny(|tensors| {
        for tensor in tensors {
            let columns = *tensor.shape.last().unwrap();
            let rows = tensor.values.chunks_exact_mut(columns);
            match tensor.name.as_str() {
                // The first feature is one token's alone, and grows beyond all bounds.
                "model.embed_tokens.weight" => rows.enumerate().for_each(|(row, values)| {
                    values[0] = f32::from(u8::from(row == BAD as usize));
                }),
                "model.layers.0.self_attn.o_proj.weight"
                | "model.layers.0.mlp.down_proj.weight" => tensor.values[..columns].fill(0.0),
                "model.layers.0.mlp.gate_proj.weight" | "model.layers.0.mlp.up_proj.weight" => {
                    rows.for_each(|values| values[0] = 1e30);
                }
                _ => {}
            }
        }
    });
    let mut engine = Running::new(open(folder.path(), Size::LARGE));
    let expected = [1, 2].map(|seed| engine.alone(request(good(seed, 80), 20)));
    let mut prompt = good(3, 80);
    prompt[40] = BAD;
    let asked = [good(1, 80), prompt, good(2, 80)].map(|p| engine.submit(request(p, 20)));
    engine.run();
    let [first, bad, second] = asked.map(|id| engine.taken(id));
    assert!(
        matches!(bad.error, Some(Error::NonFinite { position: 79 })),
        "{bad:?}"
    );
    assert!(bad.tokens.is_empty());
    first.assert_same(&expected[0], "before it");
    second.assert_same(&expected[1], "behind it");
}
