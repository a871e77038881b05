//! Modules put together mean what they meant apart.

use warpwright_ptx::{JoinError, Module, Target, text, verify};

fn module(target: &str, body: &str) -> Module {
    let parsed = text::parse(&format!(".version 8.0\n.target {target}\n.address_size 64\n{body}"));
    assert!(!parsed.has_errors(), "{:?}", parsed.diagnostics);
    parsed.module
}

/// A kernel that stores the address of a variable, which so stays visible in the text.
fn kernel(name: &str, variable: &str) -> String {
    format!(
        ".visible .entry {name}(.param .u64 y) {{
            .reg .b64 %rd<3>;
            ld.param.u64 %rd1, [y];
            mov.u64 %rd2, {variable};
            st.global.u64 [%rd1], %rd2;
            ret;
        }}\n"
    )
}

/// The variable that a kernel of the module stores the address of.
fn stored<'a>(text: &'a str, kernel: &str) -> &'a str {
    let from = text.find(&format!(".entry {kernel}(")).expect("the kernel is there");
    let line = text[from..].lines().find(|line| line.contains("mov.")).expect("it moves an address");
    line.rsplit(", ").next().expect("a source").trim_end_matches(';')
}

#[test]
fn variables_keep_their_meaning() {
    let table = |values: &str| format!(".global .align 4 .b32 table[2] = {{{values}}};\n");
    let dynamic = |align: u32| format!(".extern .shared .align {align} .b8 dynamic[];\n");
    let a = format!("{}{}{}{}", dynamic(16), table("1, 2"), kernel("a", "table"), kernel("a2", "dynamic"));
    let b = format!("{}{}{}{}", table("3, 4"), dynamic(128), kernel("b", "table"), kernel("b2", "dynamic"));
    let c = format!("{}{}{}{}", table("1, 2"), dynamic(16), kernel("c", "table"), kernel("c2", "dynamic"));
    let mut all = module("sm_80", &a);
    all.join(module("sm_80", &b)).expect("joins");
    all.join(module("sm_80", &c)).expect("joins");
    let findings = verify::verify(&all);
    assert!(findings.is_empty(), "{findings:?}");
    let text = text::print(&all);
    let read_again = text::parse(&text);
    assert!(!read_again.has_errors(), "{:?}", read_again.diagnostics);
    for (kernel, values) in [("a", "1, 2"), ("b", "3, 4"), ("c", "1, 2")] {
        let declared = format!(" {}[2] = {{{values}}};", stored(&text, kernel));
        assert_eq!(text.matches(&declared).count(), 1, "{kernel}: {text}");
    }
    for (kernel, align) in [("a2", 16), ("b2", 128), ("c2", 16)] {
        let declared = format!(".extern .shared .align {align} .b8 {}[];", stored(&text, kernel));
        assert_eq!(text.matches(&declared).count(), 1, "{kernel}: {text}");
    }
    // `table` and `dynamic` twice each: those of `a` and `c` are the same.
    assert_eq!(all.variables.len(), 4);
}

#[test]
fn the_target_takes_both() {
    let of = |target: &str, name: &str| module(target, &kernel(name, "v").replace("v;", "0;"));
    for (left, right, joined) in
        [("sm_90", "sm_90a", "sm_90a"), ("sm_90a", "sm_80", "sm_90a"), ("sm_80", "sm_90", "sm_90")]
    {
        let mut all = of(left, "a");
        all.join(of(right, "b")).expect("joins");
        assert_eq!(all.target.to_string(), joined);
    }
    let mut all = of("sm_90a", "a");
    let before = all.clone();
    let error = all.join(of("sm_100a", "b")).expect_err("no device runs both");
    assert_eq!(error, JoinError::Targets { left: Target::specific(90), right: Target::specific(100) });
    assert_eq!(all, before);
}

#[test]
fn a_name_that_others_see_means_one_thing() {
    let visible = |n: u32| format!(".visible .global .b32 v = {n};\n");
    let mut all = module("sm_80", &(visible(1) + &kernel("a", "v")));
    all.join(module("sm_80", &(visible(1) + &kernel("a", "v")))).expect("the same twice");
    assert_eq!((all.functions.len(), all.variables.len()), (1, 1));
    let before = all.clone();
    for (other, name) in [
        (visible(2) + &kernel("b", "v"), "v"),
        (".global .b32 w = 1;\n".to_owned() + &kernel("a", "w"), "a"),
        (".global .b32 x = 1;\n".to_owned() + &kernel("v", "x"), "v"),
        (".visible .global .b32 a = 1;\n".to_owned() + &kernel("b", "a"), "a"),
    ] {
        let error = all.join(module("sm_80", &other)).expect_err(&other);
        assert_eq!(error, JoinError::Name { name: name.to_owned() }, "{other}");
        assert_eq!(all, before);
    }
}

#[test]
fn calls_reach_the_function_that_was_meant() {
    let device = |name: &str, n: u32| format!(".func (.reg .b32 r) {name}() {{ mov.b32 r, {n}; ret; }}\n");
    let caller = |name: &str, callee: &str| {
        format!(".visible .entry {name}() {{ .reg .b32 %r<2>; call (%r1), {callee}; ret; }}\n")
    };
    let mut all = module("sm_80", &(device("f", 1) + &caller("a", "f")));
    all.join(module("sm_80", &(device("g", 2) + &device("f", 1) + &caller("b", "f") + &caller("c", "g"))))
        .expect("joins");
    let names: Vec<_> = all.functions.iter().map(|f| f.name.as_str()).collect();
    assert_eq!(names, ["f", "a", "g", "b", "c"]);
    let text = text::print(&all);
    for (caller, callee) in [("a", "f"), ("b", "f"), ("c", "g")] {
        let from = text.find(&format!(".entry {caller}(")).expect("the kernel is there");
        let call = text[from..].lines().find(|line| line.contains("call")).expect("it calls");
        assert!(call.contains(callee), "{call}");
    }
}
