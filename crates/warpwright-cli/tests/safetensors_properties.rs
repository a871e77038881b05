//! Properties of the safetensors reader and writer.

use proptest::collection::vec;
use proptest::prelude::*;
use warpwright_cli::checkpoint::{Header, Layout, Reader, StoredType, TensorSpec, Writer};

fn spec() -> impl Strategy<Value = TensorSpec> {
    let dtype = proptest::sample::select(StoredType::ALL);
    // Extents whose product fills whole bytes in the types below eight bits too.
    (".{0,12}", dtype, vec(0u64..5, 0..4)).prop_map(|(name, dtype, mut shape)| {
        if dtype.bits() < 8 {
            shape.push(4);
        }
        TensorSpec { name, dtype, shape }
    })
}

fn specs() -> impl Strategy<Value = Vec<TensorSpec>> {
    vec(spec(), 0..8).prop_map(|mut specs| {
        specs.sort_by(|a, b| a.name.cmp(&b.name));
        specs.dedup_by(|a, b| a.name == b.name);
        specs
    })
}

/// A file of these tensors; byte `i` of tensor `t` is `16 t + i`.
fn written(specs: &[TensorSpec]) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let path = folder.path().join("m.safetensors");
    let layout = Layout::new(&path, &[], specs).expect("the names differ and the shapes are small");
    let sizes: Vec<_> = (0..specs.len()).map(|at| layout.tensor_bytes(at)).collect();
    let mut writer = Writer::create(&path, false, layout).expect("the folder is writable");
    for (at, size) in sizes.into_iter().enumerate() {
        let bytes: Vec<u8> = (0..size).map(|i| (16 * at as u64 + i) as u8).collect();
        writer.append(at, &bytes).expect("the tensor has room");
    }
    writer.commit().expect("every tensor is complete");
    (folder, path)
}

/// The promises of a header that was accepted.
fn assert_sound(header: &Header, length: u64) {
    let mut end = 0;
    for tensor in &header.tensors {
        assert_eq!(tensor.start, end, "tensors lie one behind the other");
        assert_eq!(tensor.dtype.bytes(tensor.elements()), Some(tensor.bytes()), "size and shape agree");
        end = tensor.end;
    }
    assert_eq!(header.data_start + end, length, "no byte belongs to nobody");
}

/// That the format's own library reads the same out of a file.
fn assert_read_alike(header: &Header, bytes: &[u8]) {
    let theirs = safetensors::SafeTensors::deserialize(bytes).expect("what we accept");
    assert_eq!(theirs.len(), header.tensors.len());
    for tensor in &header.tensors {
        let their = theirs.tensor(&tensor.name).expect("each tensor");
        let shape: Vec<u64> = their.shape().iter().map(|n| *n as u64).collect();
        assert_eq!((their.dtype().to_string().as_str(), &shape), (tensor.dtype.name(), &tensor.shape));
        let start = usize::try_from(header.data_start + tensor.start).expect("a small file");
        assert_eq!(their.data().as_ptr(), bytes[start..].as_ptr(), "{}", tensor.name);
        assert_eq!(their.data().len() as u64, tensor.bytes());
    }
}

proptest! {
    #[test]
    fn the_library_of_the_format_reads_what_is_written(specs in specs()) {
        let (_folder, path) = written(&specs);
        let bytes = std::fs::read(&path).expect("our own file");
        let header = Header::parse(&bytes[..], bytes.len() as u64).expect("our own file");
        prop_assert_eq!(header.tensors.len(), specs.len());
        assert_read_alike(&header, &bytes);
    }

    #[test]
    fn what_is_written_reads_back(specs in specs()) {
        let (_folder, path) = written(&specs);
        let reader = Reader::open(&path).expect("our own file");
        prop_assert_eq!(reader.tensors().len(), specs.len());
        for (at, spec) in specs.iter().enumerate() {
            let tensor = reader.get(&spec.name).expect("it was written");
            prop_assert_eq!((tensor.dtype, &tensor.shape), (spec.dtype, &spec.shape));
            prop_assert_eq!((reader.header().data_start + tensor.start) % spec.dtype.alignment(), 0);
            let bytes = reader.read(tensor).expect("it lies in the file");
            let expected: Vec<u8> = (0..tensor.bytes()).map(|i| (16 * at as u64 + i) as u8).collect();
            prop_assert_eq!(bytes, expected);
        }
    }

    #[test]
    fn a_file_that_was_cut_is_refused(specs in specs(), cut in 1usize..64) {
        let (_folder, path) = written(&specs);
        let bytes = std::fs::read(&path).expect("our own file");
        let kept = &bytes[..bytes.len().saturating_sub(cut)];
        prop_assert!(Header::parse(kept, kept.len() as u64).is_err());
        let longer = [&bytes[..], &[0]].concat();
        prop_assert!(Header::parse(&longer[..], longer.len() as u64).is_err());
    }

    #[test]
    fn a_damaged_file_is_refused_or_sound(specs in specs(), damage in vec((any::<u16>(), any::<u8>()), 1..5)) {
        let (_folder, path) = written(&specs);
        let mut bytes = std::fs::read(&path).expect("our own file");
        for (at, value) in damage {
            let at = usize::from(at) % bytes.len();
            bytes[at] = value;
        }
        if let Ok(header) = Header::parse(&bytes[..], bytes.len() as u64) {
            assert_sound(&header, bytes.len() as u64);
            assert_read_alike(&header, &bytes);
        }
    }

    #[test]
    fn any_bytes_are_refused_or_sound(text in "[\\[\\]{}\":, 0-9a-zA-Z_]{0,200}", data in 0usize..64) {
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        if let Ok(header) = Header::parse(&bytes[..], bytes.len() as u64) {
            assert_sound(&header, bytes.len() as u64);
        }
    }

    #[test]
    fn a_length_that_lies_is_refused(lie in any::<u64>()) {
        let mut bytes = lie.to_le_bytes().to_vec();
        bytes.extend_from_slice(b"{}");
        prop_assume!(lie != 2);
        prop_assert!(Header::parse(&bytes[..], bytes.len() as u64).is_err());
    }
}
