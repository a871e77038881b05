//! Tensor maps as file tests write them:
//! `INDEX ELEMENT DIMS STRIDES BOX SWIZZLE [elements=STRIDES] [fill=nan]`, lists joined by `x`, `-` for an empty one. In im2col
//! mode the box is `CHANNELSxPIXELS:LOWER:UPPER`, with the corners of the bounding box.

use warpwright_ptx::{
    Im2col, TensorElement, TensorFill, TensorInterleave, TensorMap, TensorMode, TensorSwizzle,
};

fn list(text: &str) -> Vec<u64> {
    if text == "-" { Vec::new() } else { text.split('x').map(|n| n.parse().expect("a number")).collect() }
}

/// Reads a map over one of the arrays at `addresses`.
pub(crate) fn parse_map(text: &str, addresses: &[u64]) -> TensorMap {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [index, element, dims, strides, extents, swizzle, ref rest @ ..] = words[..] else {
        panic!("not a tensor map: {text}")
    };
    let dims = list(dims);
    let small = |text: &str| list(text).into_iter().map(|n| n as u32).collect::<Vec<_>>();
    let mode = match extents.split(':').collect::<Vec<_>>()[..] {
        [counts, lower, upper] => {
            let corner = |text: &str| text.split('x').map(|n| n.parse().expect("a corner")).collect();
            let [channels, pixels] = small(counts)[..] else { panic!("not channels and pixels: {counts}") };
            TensorMode::Im2col(Im2col { lower: corner(lower), upper: corner(upper), channels, pixels })
        }
        _ => TensorMode::Tiled { box_dims: small(extents) },
    };
    let mut map = TensorMap {
        base: addresses[index.parse::<usize>().expect("an index")],
        element: TensorElement::from_name(element).expect("an element type"),
        strides: list(strides),
        mode,
        element_strides: vec![1; dims.len()],
        interleave: TensorInterleave::None,
        swizzle: TensorSwizzle::from_name(swizzle).expect("a swizzle"),
        fill: TensorFill::Zero,
        dims,
    };
    for word in rest {
        match word.split_once('=') {
            Some(("elements", strides)) => map.element_strides = small(strides),
            Some(("fill", "nan")) => map.fill = TensorFill::Nan,
            _ => panic!("unknown option {word} of a tensor map"),
        }
    }
    map
}

/// Appends a map to a parameter buffer.
#[allow(dead_code, reason = "every harness uses a part")]
pub(crate) fn push_map(params: &mut Vec<u8>, map: &TensorMap) {
    params.resize(params.len().next_multiple_of(64), 0);
    params.extend(map.encode());
}
