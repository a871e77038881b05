//! Kernels that a test makes are those that the assembler takes.

/// Assembles a kernel, where `WARPWRIGHT_PTXAS` names an assembler.
pub(crate) fn assemble(text: &str) {
    let Some(ptxas) = std::env::var_os("WARPWRIGHT_PTXAS") else { return };
    let folder = std::env::temp_dir().join(format!(
        "warpwright-tensor-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    std::fs::create_dir_all(&folder).expect("a temporary directory");
    std::fs::write(folder.join("kernel.ptx"), text).expect("the text is written");
    let output = std::process::Command::new(ptxas)
        .args(["-O0", "-arch", "sm_100a", "-o"])
        .arg(folder.join("kernel.cubin"))
        .arg(folder.join("kernel.ptx"))
        .output()
        .expect("ptxas starts");
    std::fs::remove_dir_all(&folder).expect("the directory is ours");
    assert!(output.status.success(), "{}{text}", String::from_utf8_lossy(&output.stderr));
}
