//! Ctrl-C and other signals, where they do not simply end the program.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{io, process, thread};

use cider::Cancel;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::{flag, low_level};

/// Ctrl-C in a chat: it ends the answer that runs; where none does, and the second time, it ends the program.
pub(crate) struct Interrupt {
    /// Whether the next one ends the program.
    ends: Arc<AtomicBool>,
}

impl Interrupt {
    /// Listens from now on.
    pub(crate) fn listen() -> io::Result<Self> {
        let ends = Arc::new(AtomicBool::new(true));
        // In this order: the one that finds no answer ends the program, the other marks the answer as ended.
        flag::register_conditional_shutdown(SIGINT, INTERRUPTED, Arc::clone(&ends))?;
        flag::register(SIGINT, Arc::clone(&ends))?;
        Ok(Self { ends })
    }

    /// An answer begins: the switch that ends it.
    pub(crate) fn answer(&self) -> Cancel {
        self.ends.store(false, Ordering::SeqCst);
        Cancel::from(Arc::clone(&self.ends))
    }

    /// No answer runs any more.
    pub(crate) fn rest(&self) {
        self.ends.store(true, Ordering::SeqCst);
    }
}

/// Does work that a signal must not cut; one that comes meanwhile has its usual effect behind it.
pub(crate) fn whole<T>(work: impl FnOnce() -> T) -> io::Result<T> {
    let done = Arc::new(AtomicBool::new(false));
    let came = Arc::new(AtomicUsize::new(0));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_default(signal, Arc::clone(&done))?;
        flag::register_usize(signal, Arc::clone(&came), signal as usize)?;
    }
    let unfinished = lock(&UNFINISHED);
    let result = work();
    drop(unfinished);
    done.store(true, Ordering::SeqCst);
    if let Ok(signal @ 1..) = i32::try_from(came.load(Ordering::SeqCst)) {
        low_level::emulate_default_handler(signal)?;
    }
    Ok(result)
}

/// Something that is done before a signal ends the program, for as long as this lives.
pub(crate) struct Cleaner(u64);

impl Cleaner {
    /// From now on `clean` is called before a signal ends the program, after those that came later.
    pub(crate) fn new(clean: impl Fn() + Send + 'static) -> io::Result<Self> {
        let mut all = lock(&CLEANERS);
        if all.next == 0 {
            let signals = Signals::new([SIGINT, SIGTERM])?;
            thread::Builder::new()
                .name("signals".to_owned())
                .spawn(move || end_by_signal(signals))?;
        }
        all.next += 1;
        let id = all.next;
        all.cleaners.push((id, Box::new(clean)));
        Ok(Self(id))
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        lock(&CLEANERS).cleaners.retain(|(id, _)| *id != self.0);
    }
}

fn end_by_signal(mut signals: Signals) {
    let Some(signal) = signals.forever().next() else {
        return;
    };
    for (_, clean) in lock(&CLEANERS).cleaners.iter().rev() {
        clean();
    }
    let _finished = lock(&UNFINISHED);
    // What cannot be emulated is ended all the same.
    let _ = low_level::emulate_default_handler(signal);
    process::exit(128 + signal);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is done before a signal ends the program: all of it by one thread, so that none is cut by another's end.
struct Cleaners {
    /// Numbers given out so far; the thread that listens is there from the first.
    next: u64,
    cleaners: Vec<(u64, Box<dyn Fn() + Send>)>,
}

static CLEANERS: Mutex<Cleaners> = Mutex::new(Cleaners {
    next: 0,
    cleaners: Vec::new(),
});

/// Held by work that must not be cut.
static UNFINISHED: Mutex<()> = Mutex::new(());

/// The exit code of a program that was interrupted, as shells give it.
const INTERRUPTED: i32 = 130;
