//! A result depends on the request alone: not on chunks, threads, the rest of the batch, the instruction set
//! or the state of the cache. Instruction sets agree with bf16 activations too: the dot product of bf16 adds in
//! the same order, and nothing here is below the normal numbers.

use std::sync::Arc;

use cider::generate::Runner;
use cider::load::Checkpoint;
use cider::{Backend, DType, Isa, Quantization, Scheme};
use cider_kernels::ReferenceBackend;
use serde_json::json;

use crate::recipe::Tensor;
use crate::support::{
    Arrays, Folder, Running, Text, alone, assert_same, best, cpu, distance, f_tiny, isas, load,
    plan, random_ids, step, testdata,
};

/// Every scheme with every group size that changes anything.
fn plans() -> Vec<Quantization> {
    let quantised = Scheme::ALL
        .into_iter()
        .filter(|&scheme| scheme != Scheme::None);
    let plans = quantised.flat_map(|scheme| [0, 32, 64, 128].map(|group| plan(scheme, group)));
    [plan(Scheme::None, 0)].into_iter().chain(plans).collect()
}

/// Two models: f32 with columns that no group divides, and one with norms of heads wider than the model.
fn models() -> [(&'static str, Checkpoint, Vec<u32>); 2] {
    ["qwen2-bias", "qwen3-headdim"].map(|name| {
        let folder = testdata(name);
        let ids = Arrays::read(&folder.join("expected.safetensors")).ids("ids");
        (name, Checkpoint::open(&folder).unwrap(), ids)
    })
}

/// What a text gives alone, whole, on one thread: as a prompt, and with 13 prompt tokens.
struct Lone {
    prompt: Vec<f32>,
    generated: Vec<f32>,
}

impl Lone {
    fn of(runner: &mut Runner, ids: &[u32]) -> Self {
        Self {
            prompt: alone(runner, Text::prompt(ids)),
            generated: alone(runner, Text::generated_from(ids, PROMPT)),
        }
    }

    /// The same text in chunks of some sizes; a chunk may hold prompt tokens and generated ones.
    fn check_chunks(&self, runner: &mut Runner, ids: &[u32], chunks: &[usize], what: &str) {
        for &chunk in chunks {
            let prompt = alone(runner, Text::prompt(ids).in_chunks(chunk));
            assert_same(&prompt, &self.prompt, &format!("{what}: chunks of {chunk}"));
            let text = Text::generated_from(ids, PROMPT).in_chunks(chunk);
            let found = alone(runner, text);
            let what = format!("{what}: chunks of {chunk}, generated from {PROMPT}");
            assert_same(&found, &self.generated, &what);
        }
    }

    /// The same text in the same steps as two others: one is generated while it is still a prompt.
    fn check_company(&self, runner: &mut Runner, ids: &[u32], orders: &[[usize; 4]], what: &str) {
        let others = [random_ids(1, 31, 320), random_ids(2, 9, 320)];
        let texts = [
            Text::prompt(ids).in_chunks(7),
            Text::generated_from(&others[0], 2).in_chunks(1),
            Text::prompt(&others[1]).in_chunks(4),
            Text::generated_from(ids, PROMPT).in_chunks(3),
        ];
        let lone = texts.map(|text| {
            alone(
                runner,
                Text {
                    chunk: text.ids.len(),
                    ..text
                },
            )
        });
        assert_same(&lone[0], &self.prompt, what);
        assert_same(&lone[3], &self.generated, what);
        for order in orders {
            let mut running = texts.map(Running::new);
            while running.iter().any(|text| text.left() > 0) {
                let mut places = running.each_mut().map(Some);
                let mut batch: Vec<_> = order.iter().filter_map(|&i| places[i].take()).collect();
                step(runner, &mut batch).unwrap();
            }
            for (i, mut text) in running.into_iter().enumerate() {
                text.release(runner);
                let what = format!("{what}: text {i} in order {order:?}");
                assert_same(&text.logits, &lone[i], &what);
            }
        }
    }
}

#[test]
fn chunks_threads_company_and_instruction_sets_leave_every_bit() {
    for (name, checkpoint, ids) in models() {
        for (plan, dtype) in plans()
            .into_iter()
            .flat_map(|plan| DTYPES.map(|dtype| (plan, dtype)))
        {
            let mut first: Option<Lone> = None;
            for isa in isas() {
                let what = format!("{name} {plan:?} {dtype} {isa}");
                let mut runner = load(&checkpoint, cpu(isa, 1), plan, dtype);
                let lone = Lone::of(&mut runner, &ids);
                let first = first.get_or_insert_with(|| Lone::of(&mut runner, &ids));
                assert_same(&lone.prompt, &first.prompt, &what);
                assert_same(&lone.generated, &first.generated, &what);
                // How rows are cut and batched does not depend on the instruction set: all ways on one, some on
                // the others.
                let (chunks, orders) = if isa == Isa::best() {
                    (&CHUNKS[..], &ORDERS[..])
                } else {
                    (&CHUNKS[3..4], &ORDERS[2..])
                };
                let mut two = load(&checkpoint, cpu(isa, 2), plan, dtype);
                lone.check_chunks(&mut two, &ids, chunks, &format!("{what}, 2 threads"));
                lone.check_company(&mut two, &ids, orders, &format!("{what}, 2 threads"));
                let mut three = load(&checkpoint, cpu(isa, 3), plan, dtype);
                let again = Lone::of(&mut three, &ids);
                assert_same(&again.prompt, &lone.prompt, &format!("{what}, 3 threads"));
                assert_same(
                    &again.generated,
                    &lone.generated,
                    &format!("{what}, 3 threads"),
                );
            }
        }
    }
}

/// The plain loops that define every op give the same bits, through a whole model.
#[test]
fn the_reference_backend_gives_the_bits_of_every_instruction_set() {
    for (name, checkpoint, ids) in models() {
        let ids = &ids[..24];
        for (plan, dtype) in plans()
            .into_iter()
            .flat_map(|plan| DTYPES.map(|dtype| (plan, dtype)))
        {
            let reference: Arc<dyn Backend> = Arc::new(ReferenceBackend);
            let expected = Lone::of(&mut load(&checkpoint, reference, plan, dtype), ids);
            for isa in isas() {
                let what = format!("{name} {plan:?} {dtype} {isa}");
                let found = Lone::of(&mut load(&checkpoint, cpu(isa, 1), plan, dtype), ids);
                assert_same(&found.prompt, &expected.prompt, &what);
                assert_same(&found.generated, &expected.generated, &what);
            }
        }
    }
}

/// The phase decides, never the number of rows: in a model of one layer with a window of 8, generated tokens that
/// see no prompt token have the bits of the scheme with float activations, however many are computed at once;
/// prompt tokens have others.
#[test]
fn generated_tokens_meet_float_activations() {
    let change = json!({"num_hidden_layers": 1, "use_sliding_window": true, "sliding_window": 8,
        "max_window_layers": 0});
    let folder = Folder::with_config(f_tiny(), &change);
    let ids = random_ids(22, 40, 500);
    for (integers, floats) in [(Scheme::W8A8, Scheme::W8A16), (Scheme::W4A8, Scheme::W4A16)] {
        for (dtype, isa) in DTYPES
            .into_iter()
            .flat_map(|dtype| isas().into_iter().map(move |isa| (dtype, isa)))
        {
            let run = |scheme, prompt, chunk| {
                let mut runner = load(&folder.open(), cpu(isa, 2), Quantization::of(scheme), dtype);
                let text = Text::generated_from(&ids, prompt).in_chunks(chunk);
                alone(&mut runner, text).split_off(20 * 512)
            };
            let expected = run(floats, 13, 40);
            for chunk in [1, 5, 40] {
                assert_same(
                    &run(integers, 13, chunk),
                    &expected,
                    &format!("{isa} {integers} {dtype}"),
                );
                assert!(distance(&run(integers, 40, chunk), &expected) > 1e-3);
            }
        }
    }
}

/// 200 tokens are four blocks of the cache: prompts are reduced left to right over them, generated tokens by
/// a tree, whatever the chunks.
#[test]
fn blocks_of_the_cache_leave_every_bit() {
    let checkpoint = Checkpoint::open(f_tiny()).unwrap();
    let ids = random_ids(200, 200, 500);
    for dtype in DTYPES {
        let mut first: Option<[Vec<f32>; 3]> = None;
        for isa in isas() {
            let mut runner = load(
                &checkpoint,
                cpu(isa, 2),
                Quantization::of(Scheme::W8A8),
                dtype,
            );
            let texts = [200, 150, 3].map(|prompt| Text::generated_from(&ids, prompt));
            let lone = texts.map(|text| alone(&mut runner, text));
            let chunks: &[usize] = if isa == Isa::best() {
                &[1, 7, 63, 64, 65, 128]
            } else {
                &[65]
            };
            for &chunk in chunks {
                for (text, lone) in texts.iter().zip(&lone) {
                    let found = alone(&mut runner, text.in_chunks(chunk));
                    assert_same(
                        &found,
                        lone,
                        &format!("{isa} {dtype} {text:?}, chunks of {chunk}"),
                    );
                }
            }
            let first = first.get_or_insert_with(|| lone.clone());
            for (found, expected) in lone.iter().zip(first) {
                assert_same(found, expected, &format!("{isa} {dtype}"));
            }
        }
    }
}

/// Sequences that grow by turns have blocks all over the pool, in any order.
#[test]
fn scattered_blocks_leave_every_bit() {
    let checkpoint = Checkpoint::open(f_tiny()).unwrap();
    let texts = [
        random_ids(31, 200, 500),
        random_ids(32, 190, 500),
        random_ids(33, 170, 500),
    ];
    let texts =
        [(0, 120), (1, 20), (2, 170)].map(|(i, prompt)| Text::generated_from(&texts[i], prompt));
    let mut runner = load(
        &checkpoint,
        best(),
        Quantization::of(Scheme::W8A8),
        DType::Bf16,
    );
    let lone = texts.map(|text| alone(&mut runner, text));
    for chunks in [[64, 32, 17], [5, 64, 50], [128, 3, 64]] {
        // One goes and comes back, so that the pool is handed out in another order each time.
        let mut running = [0, 1, 2].map(|i| Running::new(texts[i].in_chunks(chunks[i])));
        for _ in 0..2 {
            let [a, b, c] = &mut running;
            step(&mut runner, &mut [a, b, c]).unwrap();
        }
        running[1].release(&mut runner);
        running[1] = Running::new(texts[1].in_chunks(chunks[1]));
        while running.iter().any(|text| text.left() > 0) {
            let [a, b, c] = &mut running;
            step(&mut runner, &mut [b, c, a]).unwrap();
        }
        for (i, text) in running.iter_mut().enumerate() {
            assert_same(
                &text.logits,
                &lone[i],
                &format!("text {i}, chunks {chunks:?}"),
            );
        }
        for i in [1, 0, 2] {
            running[i].release(&mut runner);
        }
    }
}

/// Blocks that come back hold what was there: here keys and values that are NaN.
#[test]
fn what_others_left_in_the_cache_is_never_seen() {
    let folder = Folder::f_tiny(poison);
    let ids: Vec<_> = random_ids(77, 100, 499).iter().map(|id| id + 1).collect();
    let mut bad = random_ids(78, 130, 500);
    bad[0] = POISON;
    for (plan, dtype) in [(Scheme::None, DType::F32), (Scheme::W8A8, DType::Bf16)] {
        for isa in isas() {
            let mut runner = load(&folder.open(), cpu(isa, 2), Quantization::of(plan), dtype);
            let texts = [100, 40].map(|prompt| Text::generated_from(&ids, prompt));
            let clean = texts.map(|text| alone(&mut runner, text));
            assert!(clean.iter().flatten().all(|logit| logit.is_finite()));
            let mut running = [0; 4].map(|_| Running::new(Text::prompt(&bad).in_chunks(64)));
            while running[3].left() > 0 {
                for text in &mut running {
                    step(&mut runner, &mut [text]).unwrap();
                }
            }
            for mut text in running {
                assert!(text.logits.iter().all(|logit| !logit.is_finite()));
                text.release(&mut runner);
            }
            for (text, clean) in texts.iter().zip(&clean) {
                for chunk in [7, 100] {
                    let found = alone(&mut runner, text.in_chunks(chunk));
                    assert_same(&found, clean, &format!("{isa} {plan} {dtype} {text:?}"));
                }
            }
        }
    }
}

/// Makes F-TINY overflow in its first MLP for the token [`POISON`], and for no other: the first feature is
/// that token's alone, and grows beyond all bounds.
pub(crate) fn poison(tensors: &mut Vec<Tensor>) {
    for tensor in tensors {
        let columns = *tensor.shape.last().unwrap();
        let rows = tensor.values.chunks_exact_mut(columns);
        match tensor.name.as_str() {
            "model.embed_tokens.weight" => {
                let numbered = rows.enumerate();
                numbered.for_each(|(row, values)| values[0] = f32::from(row == POISON as usize));
            }
            "model.layers.0.self_attn.o_proj.weight" | "model.layers.0.mlp.down_proj.weight" => {
                tensor.values[..columns].fill(0.0);
            }
            "model.layers.0.mlp.gate_proj.weight" | "model.layers.0.mlp.up_proj.weight" => {
                rows.for_each(|values| values[0] = 1e30);
            }
            _ => {}
        }
    }
}

/// The token that makes a poisoned F-TINY overflow.
pub(crate) const POISON: u32 = 0;

/// Prompt tokens of texts that go on.
const PROMPT: usize = 13;

/// Sizes of chunks; the last one takes the texts of the fixtures whole.
const CHUNKS: [usize; 6] = [1, 2, 3, 7, 16, 40];

/// Orders of four texts in a step.
const ORDERS: [[usize; 4]; 3] = [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]];

/// The types of activations.
const DTYPES: [DType; 2] = [DType::F32, DType::Bf16];
