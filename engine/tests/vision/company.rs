//! A sequence with images in the same steps as others gives what it gives alone.

use cider::generate::PromptImage;
use cider::{DType, Isa, Scheme};

use crate::support::{
    Prompt, Running, Seen, assert_same, cpu, fixture, open_with, options, together,
};

/// Two prompts with images and one without, each with its last tokens as generated ones; chunks of unlike sizes.
#[test]
fn sequences_with_images_do_not_see_each_other() {
    let prompts = ["three", "turns", "text"].map(|name| Prompt::named("tiny", name));
    for scheme in [Scheme::None, Scheme::W8A8] {
        for dtype in [DType::F32, DType::Bf16] {
            let mut first: Option<Vec<Vec<f32>>> = None;
            for threads in [1, 2, 3] {
                let backend = cpu(Isa::best(), threads);
                let options = options(scheme, dtype);
                let mut engine = open_with(&fixture("tiny"), backend, options).unwrap();
                let seen: Vec<Seen> = prompts.iter().map(|p| p.see(&mut engine)).collect();
                let what = format!("{scheme}, {dtype}, {threads} threads");
                let lone: Vec<_> = seen
                    .iter()
                    .map(|one| {
                        Running::new(one, generated_from(one), one.ids.len()).alone(&mut engine)
                    })
                    .collect();
                for chunks in [[1, 5, 3], [64, 2, 7], [4, 64, 1], [64, 64, 64]] {
                    let mut running: Vec<_> = seen
                        .iter()
                        .zip(chunks)
                        .map(|(one, chunk)| Running::new(one, generated_from(one), chunk))
                        .collect();
                    together(&mut engine, &mut running.iter_mut().collect::<Vec<_>>());
                    for (i, (running, lone)) in running.iter().zip(&lone).enumerate() {
                        let what = format!("{what}, {chunks:?}: {}", prompts[i].name);
                        assert_same(&running.logits, lone, &what);
                    }
                }
                let first = first.get_or_insert_with(|| lone.clone());
                for (lone, first) in lone.iter().zip(first) {
                    assert_same(lone, first, &what);
                }
            }
        }
    }
}

fn generated_from(seen: &Seen) -> usize {
    let end = seen.images.last().map_or(0, PromptImage::end);
    end.max(seen.ids.len() - 6)
}

/// The same prompt twice with other pictures, in the same steps.
#[test]
fn the_same_words_with_other_pictures_keep_apart() {
    let options = options(Scheme::None, DType::F32);
    let backend = cpu(Isa::best(), 2);
    let mut engine = open_with(&fixture("tiny"), backend, options).unwrap();
    let prompt = Prompt::named("tiny", "middle");
    let pictures = ["photo.png", "clear-0.png"].map(crate::support::picture);
    let seen = pictures.map(|picture| Seen::raw(&mut engine, &prompt.text, &[picture]));
    assert_eq!(seen[0].ids, seen[1].ids);
    let lone = [0, 1].map(|i| seen[i].logits(&mut engine));
    assert_ne!(lone[0], lone[1]);
    let mut running = [0, 1].map(|i| Running::new(&seen[i], seen[i].ids.len(), 5));
    let [a, b] = &mut running;
    together(&mut engine, &mut [a, b]);
    for (running, lone) in running.iter().zip(&lone) {
        assert_same(&running.logits, lone, "together");
    }
}
