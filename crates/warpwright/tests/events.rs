//! Events that a subscriber sees of a plan, a compilation and launches.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use warpwright::softmax::{Softmax, SoftmaxDesc, softmax};
use warpwright::{DType, Device, EmulatorConfig, Error, LaunchStep, Operation, Target, Tensor};

/// The fields of an event, as text, and those of the spans around it.
#[derive(Clone, Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl Fields {
    fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }
}

/// Events in order: target and fields.
#[derive(Clone, Default)]
struct Collected(Arc<Mutex<Vec<(String, Fields)>>>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Collected {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        context.span(id).expect("it was made").extensions_mut().insert(fields);
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        if !event.metadata().target().starts_with("warpwright::") {
            return;
        }
        assert_eq!(*event.metadata().level(), Level::DEBUG);
        let mut fields = Fields::default();
        for span in context.event_scope(event).into_iter().flatten() {
            fields.0.extend(span.extensions().get::<Fields>().cloned().unwrap_or_default().0);
        }
        event.record(&mut fields);
        self.0.lock().expect("whole").push((event.metadata().target().to_owned(), fields));
    }
}

impl Collected {
    fn take(&self) -> Vec<(String, Fields)> {
        std::mem::take(&mut *self.0.lock().expect("whole"))
    }
}

fn told(events: &[(String, Fields)]) -> Vec<(&str, &str, &str)> {
    events.iter().map(|(target, fields)| (&**target, fields.get("message"), fields.get("store"))).collect()
}

#[test]
fn a_plan_a_compilation_launches_and_hits_are_events() -> Result<(), Error> {
    let collected = Collected::default();
    let subscriber = tracing_subscriber::registry().with(collected.clone());
    tracing::subscriber::with_default(subscriber, || {
        let on_emulator = || {
            let config = EmulatorConfig { target: Target::sm(80), ..EmulatorConfig::default() };
            let device = Device::emulator_with(config);
            Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0], &[1, 4]).map(|x| (device, x))
        };
        let (device, x) = on_emulator()?;
        let stream = device.stream()?;
        assert!(told(&collected.take()).is_empty(), "nothing was planned");

        let y = softmax(&stream, &x, 1)?;
        assert!((y.to_vec::<f32>()?.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        let first = collected.take();
        let (recorded, rest): (Vec<_>, Vec<_>) =
            first.iter().cloned().partition(|(_, fields)| fields.get("message") == "recorded");
        assert!(!recorded.is_empty());
        for (target, fields) in &recorded {
            assert_eq!(
                (&**target, fields.get("op"), fields.get("arch")),
                ("warpwright::plan", "softmax", "sm_80")
            );
            assert!(fields.get("kernel").starts_with("softmax_f32_"), "{}", fields.get("kernel"));
        }
        assert_eq!(
            told(&rest),
            [
                ("warpwright::plan", "planned", ""),
                ("warpwright::cache", "miss", "memory"),
                ("warpwright::compile", "compiled", ""),
                ("warpwright::launch", "launch", ""),
            ]
        );
        let [planned, missed, compiled, launched] = [0, 1, 2, 3].map(|at| &rest[at].1);
        assert_eq!((planned.get("op"), planned.get("direction")), ("softmax", "forward"));
        assert_eq!((planned.get("arch"), planned.get("launches")), ("sm_80", "1"));
        let kernel = missed.get("kernel");
        assert!(recorded.iter().any(|(_, fields)| fields.get("kernel") == kernel), "{kernel}");
        assert_eq!(compiled.get("kernel"), kernel);
        assert!(compiled.get("microseconds").parse::<u64>().is_ok());
        assert_eq!(launched.get("kernel"), kernel);
        // Of the span around it.
        assert_eq!((launched.get("op"), launched.get("direction")), ("softmax", "forward"));
        assert_eq!((launched.get("grid"), launched.get("cluster")), ("[1, 1, 1]", "[1, 1, 1]"));
        assert!(launched.get("block").starts_with('['), "{}", launched.get("block"));
        assert_eq!(launched.get("dynamic_shared"), "0");
        assert_eq!(launched.get("device"), device.id().to_string());

        softmax(&stream, &x, 1)?;
        let again = [("warpwright::cache", "hit", "plans"), ("warpwright::launch", "launch", "")];
        assert_eq!(told(&collected.take()), again);

        // Loaded before under its text, though not by this step.
        device.load(step_on(&device)?.kernel())?;
        let loaded = collected.take();
        let hit = loaded.last().expect("an event");
        assert_eq!(
            (&*hit.0, hit.1.get("message"), hit.1.get("store")),
            ("warpwright::cache", "hit", "memory")
        );
        assert_eq!(hit.1.get("kernel"), kernel);

        // Another device has the plan, and no kernel yet.
        let (other, x) = on_emulator()?;
        softmax(&other.stream()?, &x, 1)?;
        assert_eq!(
            told(&collected.take()),
            [
                ("warpwright::cache", "hit", "plans"),
                ("warpwright::cache", "miss", "memory"),
                ("warpwright::compile", "compiled", ""),
                ("warpwright::launch", "launch", ""),
            ]
        );
        Ok(())
    })
}

/// The step of the same operation, planned anew.
fn step_on(device: &Device) -> Result<LaunchStep, Error> {
    let function = Softmax::Plain;
    let desc = SoftmaxDesc { function, dtype: DType::F32, outer: 1, n: 4, inner: 1, scale: 1.0.into() };
    Ok(desc.plan(device.target())?.steps()[0].clone())
}
