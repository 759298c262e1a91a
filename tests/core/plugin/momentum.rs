//! The optimizer of optimizer.c with one state, in Rust without crates: what a plugin in another language has to say.
//! The structs are those of ABI 1.0, which no later heddle of ABI 1 may move; sizes tell it how much of them is here.
use std::ffi::c_void;
use std::mem::size_of;
use std::os::raw::c_char;
use std::ptr::null;

#[repr(C)]
struct Option_ {
    name: *const c_char,
    value: *const c_char,
    unit: *const c_char,
    help: *const c_char,
    choices: *const c_char,
    aliases: *const c_char,
    min: f64,
    max: f64,
    kind: u32,
    level: u32,
    flags: u32,
    reserved: u32,
    offset: usize,
}

#[repr(C)]
struct Component {
    struct_size: usize,
    kind: u32,
    reserved: u32,
    name: *const c_char,
    summary: *const c_char,
    caps: u64,
    options: *const Option_,
    n_options: usize,
    option_size: usize,
    settings_size: usize,
    probe: Option<extern "C" fn(*const c_void, *mut c_void) -> i32>,
    ops: *const Ops,
}

#[repr(C)]
pub struct Plugin {
    magic: [u8; 8],
    struct_size: usize,
    abi_minor: u32,
    reserved: u32,
    name: *const c_char,
    version: *const c_char,
    licence: *const c_char,
    components: *const [*const Component; 2],
}

#[repr(C)]
struct Args {
    struct_size: usize,
    first: i64,
    count: i64,
    grad: *const f32,
    param: *mut f32,
    state: [*mut f32; 4],
    norm2: f64,
    hyper: *const [f64; 8],
    decay: *const c_void,
    n_decay: u64,
}

#[repr(C)]
struct Ops {
    struct_size: usize,
    caps: u64,
    n_states: u32,
    reserved: u32,
    state_names: *const [*const c_char; 1],
    decay: Option<extern "C" fn(*const Settings, *const c_char, u32) -> f64>,
    emit: Option<extern "C" fn(*const Settings, *mut u32, *mut c_void, *mut c_void) -> i32>,
    step: Option<extern "C" fn(*const Settings, *const Args) -> i32>,
    states: Option<extern "C" fn(*const Settings) -> u32>,
    learning_rate: Option<extern "C" fn(*const Settings) -> f64>,
    clip: Option<extern "C" fn(*const Settings) -> f64>,
    check: Option<extern "C" fn(*const Settings, *mut c_void) -> i32>,
}

#[repr(C)]
struct Settings {
    lr: f64,
}

struct Shared<T>(T); // constants, which nobody writes
unsafe impl<T> Sync for Shared<T> {}

macro_rules! text {
    ($text:literal) => {
        concat!($text, "\0").as_ptr() as *const c_char
    };
}

extern "C" fn learning_rate(settings: *const Settings) -> f64 {
    unsafe { (*settings).lr }
}

extern "C" fn no_clip(_: *const Settings) -> f64 {
    0.0
}

extern "C" fn step(_: *const Settings, args: *const Args) -> i32 {
    let a = unsafe { &*args };
    let [lr, _, inv_scale, skip, ..] = unsafe { *a.hyper };
    if skip != 0.0 || !a.norm2.is_finite() {
        return 0;
    }
    let n = a.count as usize;
    let (grad, param, state) = unsafe {
        (
            std::slice::from_raw_parts(a.grad, n),
            std::slice::from_raw_parts_mut(a.param, n),
            std::slice::from_raw_parts_mut(a.state[0], n),
        )
    };
    for ((g, p), m) in grad.iter().zip(param).zip(state) {
        *m = 0.5 * *m + (*g as f64 * inv_scale) as f32;
        *p -= (lr * *m as f64) as f32;
    }
    0
}

static OPTIONS: Shared<[Option_; 1]> = Shared([Option_ {
    name: text!("lr"),
    value: text!("1e-2"),
    unit: null(),
    help: text!("learning rate"),
    choices: null(),
    aliases: null(),
    min: 0.0,
    max: 1e6,
    kind: 3, // HD_OPT_FLOAT
    level: 0,
    flags: 1, // HD_OPTION_GLOBAL
    reserved: 0,
    offset: 0,
}]);

static STATES: Shared<[*const c_char; 1]> = Shared([text!("a")]);

static OPS: Shared<Ops> = Shared(Ops {
    struct_size: size_of::<Ops>(),
    caps: 1, // HD_OPTIM_FLAT
    n_states: 1,
    reserved: 0,
    state_names: &STATES.0,
    decay: None,
    emit: None,
    step: Some(step),
    states: None,
    learning_rate: Some(learning_rate),
    clip: Some(no_clip),
    check: None,
});

static COMPONENT: Shared<Component> = Shared(Component {
    struct_size: size_of::<Component>(),
    kind: 4, // HD_KIND_OPTIMIZER
    reserved: 0,
    name: text!("rust"),
    summary: text!("gradient descent with momentum, in Rust"),
    caps: 0,
    options: OPTIONS.0.as_ptr(),
    n_options: 1,
    option_size: size_of::<Option_>(),
    settings_size: size_of::<Settings>(),
    probe: None,
    ops: &OPS.0,
});

static COMPONENTS: Shared<[*const Component; 2]> = Shared([&COMPONENT.0, null()]);

static PLUGIN: Shared<Plugin> = Shared(Plugin {
    magic: *b"heddle\n\x1a",
    struct_size: size_of::<Plugin>(),
    abi_minor: 0,
    reserved: 0,
    name: text!("optim-rust"),
    version: text!("0.1.0"),
    licence: text!("Apache-2.0"),
    components: &COMPONENTS.0,
});

#[no_mangle]
pub extern "C" fn heddle_plugin_v1() -> *const Plugin {
    &PLUGIN.0
}
