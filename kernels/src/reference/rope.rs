//! Rotary positions.

/// Rotates the first `2 * cos.len()` elements of a head: element i with element `i + cos.len()`.
pub(crate) fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let pairs = cos.len();
    for i in 0..pairs {
        let (a, b) = (head[i], head[i + pairs]);
        head[i] = a.mul_add(cos[i], -(b * sin[i]));
        head[i + pairs] = b.mul_add(cos[i], a * sin[i]);
    }
}
