//! The C functions of libxgboost, loaded at run time: the only unsafe code of the trainer.
//!
//! Loading instead of linking keeps cmake, bindgen and 13 minutes of C++ out of the build; the library is
//! the one inside the `xgboost-cpu` wheel. Every call follows one rule of that API: 0 is success, else
//! `XGBGetLastError` has the text for this thread. Pointers that XGBoost returns stay its own and are
//! valid until the next call on the same handle, so they are copied before a method returns.
//!
//! What it is not: it knows nothing of shapes, parameters or versions; that is [`super`].

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;
use std::sync::Arc;

/// `bst_ulong`.
type Ulong = u64;
type Handle = *mut c_void;

macro_rules! api {
    ($($name:ident: $symbol:literal fn($($arg:ty),*) -> $ret:ty;)+) => {
        /// The functions in use, resolved once.
        struct Api {
            $($name: unsafe extern "C" fn($($arg),*) -> $ret,)+
            // Dropped last: the pointers above are into it.
            _library: libloading::Library,
        }

        impl Api {
            fn load(path: &Path) -> Result<Self, libloading::Error> {
                // SAFETY: loading runs the library's initialisers; libxgboost and its libgomp have none that
                // depend on state of ours. The caller names the file.
                let library = unsafe { libloading::Library::new(path)? };
                Ok(Self {
                    // SAFETY: the types are those of xgboost/c_api.h (3.x) for the symbol of that name.
                    $($name: *unsafe { library.get::<unsafe extern "C" fn($($arg),*) -> $ret>($symbol)? },)+
                    _library: library,
                })
            }
        }
    };
}

api! {
    version: b"XGBoostVersion\0" fn(*mut c_int, *mut c_int, *mut c_int) -> ();
    last_error: b"XGBGetLastError\0" fn() -> *const c_char;
    set_global: b"XGBSetGlobalConfig\0" fn(*const c_char) -> c_int;
    matrix_from_dense: b"XGDMatrixCreateFromDense\0" fn(*const c_char, *const c_char, *mut Handle) -> c_int;
    matrix_set_info: b"XGDMatrixSetInfoFromInterface\0" fn(Handle, *const c_char, *const c_char) -> c_int;
    matrix_free: b"XGDMatrixFree\0" fn(Handle) -> c_int;
    booster_create: b"XGBoosterCreate\0" fn(*const Handle, Ulong, *mut Handle) -> c_int;
    booster_free: b"XGBoosterFree\0" fn(Handle) -> c_int;
    booster_set: b"XGBoosterSetParam\0" fn(Handle, *const c_char, *const c_char) -> c_int;
    booster_update: b"XGBoosterUpdateOneIter\0" fn(Handle, c_int, Handle) -> c_int;
    booster_eval: b"XGBoosterEvalOneIter\0"
        fn(Handle, c_int, *const Handle, *const *const c_char, Ulong, *mut *const c_char) -> c_int;
    booster_predict: b"XGBoosterPredictFromDense\0"
        fn(Handle, *const c_char, *const c_char, Handle, *mut *const Ulong, *mut Ulong, *mut *const f32) -> c_int;
    booster_slice: b"XGBoosterSlice\0" fn(Handle, c_int, c_int, c_int, *mut Handle) -> c_int;
    booster_save: b"XGBoosterSaveModelToBuffer\0" fn(Handle, *const c_char, *mut Ulong, *mut *const c_char) -> c_int;
    booster_load: b"XGBoosterLoadModelFromBuffer\0" fn(Handle, *const c_void, Ulong) -> c_int;
}

/// What a call said when it failed.
pub(super) type Message = String;

/// The loaded library.
#[derive(Clone)]
pub(super) struct Library(Arc<Api>);

impl Library {
    pub(super) fn load(path: &Path) -> Result<Self, libloading::Error> {
        Ok(Self(Arc::new(Api::load(path)?)))
    }

    pub(super) fn version(&self) -> (i32, i32, i32) {
        let (mut major, mut minor, mut patch) = (0, 0, 0);
        // SAFETY: three valid pointers to integers, written before the call returns.
        unsafe { (self.0.version)(&raw mut major, &raw mut minor, &raw mut patch) };
        (major, minor, patch)
    }

    pub(super) fn set_global(&self, json: &CStr) -> Result<(), Message> {
        // SAFETY: a NUL-terminated string, read before the call returns.
        self.check(unsafe { (self.0.set_global)(json.as_ptr()) })
    }

    fn check(&self, status: c_int) -> Result<(), Message> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the function returns a NUL-terminated string of this thread, valid until its next call.
        let text = unsafe { CStr::from_ptr((self.0.last_error)()) };
        Err(text.to_string_lossy().into_owned())
    }

    /// A matrix of `values.len() / columns` rows, copied. `interface` must be made by
    /// [`array_interface`] from `values`, which is why this takes both.
    pub(super) fn matrix(&self, values: &[f32], shape: &[usize], config: &CStr) -> Result<Matrix, Message> {
        let interface = array_interface(values, shape);
        let mut handle = ptr::null_mut();
        // SAFETY: strings are NUL-terminated; the interface points to `values`, which outlive the call that
        // copies them, and its shape was checked against their number.
        self.check(unsafe {
            (self.0.matrix_from_dense)(interface.as_ptr(), config.as_ptr(), &raw mut handle)
        })?;
        Ok(Matrix { library: self.clone(), handle })
    }

    /// A booster that knows the matrices' number of columns; none for one that a file is loaded into.
    pub(super) fn booster(&self, matrices: &[&Matrix]) -> Result<Booster, Message> {
        let handles: Vec<Handle> = matrices.iter().map(|matrix| matrix.handle).collect();
        let mut handle = ptr::null_mut();
        // SAFETY: `handles` has the given length and holds live matrices.
        self.check(unsafe {
            (self.0.booster_create)(handles.as_ptr(), length(handles.len()), &raw mut handle)
        })?;
        Ok(Booster { library: self.clone(), handle })
    }
}

/// NumPy's array interface as JSON: address, shape, type. The shape's product must be the slice's length,
/// or XGBoost would read past it.
fn array_interface(values: &[f32], shape: &[usize]) -> CString {
    assert_eq!(shape.iter().product::<usize>(), values.len(), "shape and number of values differ");
    let json = format!(
        r#"{{"data":[{},true],"shape":{shape:?},"typestr":"<f4","version":3}}"#,
        values.as_ptr().addr()
    );
    // Expose the provenance: the address is turned back into a pointer on the other side.
    let _ = values.as_ptr().expose_provenance();
    CString::new(json).unwrap_or_default()
}

fn length(value: usize) -> Ulong {
    value as Ulong
}

/// An owned `DMatrix`.
pub(super) struct Matrix {
    library: Library,
    handle: Handle,
}

impl Matrix {
    /// Sets `label`, `weight` and the like.
    pub(super) fn set(&self, field: &CStr, values: &[f32]) -> Result<(), Message> {
        let interface = array_interface(values, &[values.len()]);
        let library = &self.library;
        // SAFETY: a live handle; strings are NUL-terminated; `values` outlive the call, which copies them.
        library.check(unsafe { (library.0.matrix_set_info)(self.handle, field.as_ptr(), interface.as_ptr()) })
    }
}

impl Drop for Matrix {
    fn drop(&mut self) {
        // SAFETY: the handle is live and owned; nothing uses it afterwards.
        unsafe { (self.library.0.matrix_free)(self.handle) };
    }
}

/// An owned booster. It holds references to its matrices inside; the safe wrapper keeps them alive.
pub(super) struct Booster {
    library: Library,
    handle: Handle,
}

impl Booster {
    pub(super) fn set(&self, name: &CStr, value: &CStr) -> Result<(), Message> {
        // SAFETY: a live handle and NUL-terminated strings.
        self.library
            .check(unsafe { (self.library.0.booster_set)(self.handle, name.as_ptr(), value.as_ptr()) })
    }

    pub(super) fn update(&self, round: i32, matrix: &Matrix) -> Result<(), Message> {
        // SAFETY: two live handles.
        self.library.check(unsafe { (self.library.0.booster_update)(self.handle, round, matrix.handle) })
    }

    /// XGBoost's line of metrics, for example `[3]\teval-quantile:0.12`.
    pub(super) fn eval(&self, round: i32, matrix: &Matrix, name: &CStr) -> Result<String, Message> {
        let (handles, names) = ([matrix.handle], [name.as_ptr()]);
        let mut out = ptr::null();
        // SAFETY: arrays of the given length (1) of a live handle and a NUL-terminated string; `out` is set to
        // a NUL-terminated string that is valid until the next call on this handle, and copied at once.
        unsafe {
            let status = (self.library.0.booster_eval)(
                self.handle,
                round,
                handles.as_ptr(),
                names.as_ptr(),
                1,
                &raw mut out,
            );
            self.library.check(status)?;
            Ok(CStr::from_ptr(out).to_string_lossy().into_owned())
        }
    }

    /// Predictions and their shape for `rows` (`shape` rows and columns).
    pub(super) fn predict(
        &self,
        rows: &[f32],
        shape: &[usize],
        config: &CStr,
    ) -> Result<(Vec<usize>, Vec<f32>), Message> {
        let interface = array_interface(rows, shape);
        let (mut out_shape, mut dims, mut out) = (ptr::null(), 0, ptr::null());
        // SAFETY: a live handle, NUL-terminated strings, `rows` outlive the call; a null proxy matrix is allowed.
        // On success `out_shape` has `dims` entries and `out` their product, both copied before the next call.
        unsafe {
            let status = (self.library.0.booster_predict)(
                self.handle,
                interface.as_ptr(),
                config.as_ptr(),
                ptr::null_mut(),
                &raw mut out_shape,
                &raw mut dims,
                &raw mut out,
            );
            self.library.check(status)?;
            let shape: Vec<usize> = std::slice::from_raw_parts(out_shape, dims as usize)
                .iter()
                .map(|&dim| dim as usize)
                .collect();
            let values = std::slice::from_raw_parts(out, shape.iter().product()).to_vec();
            Ok((shape, values))
        }
    }

    /// A new booster of the rounds `begin..end`.
    pub(super) fn slice(&self, begin: i32, end: i32) -> Result<Self, Message> {
        let mut handle = ptr::null_mut();
        // SAFETY: a live handle; the new one is owned by the value returned.
        self.library
            .check(unsafe { (self.library.0.booster_slice)(self.handle, begin, end, 1, &raw mut handle) })?;
        Ok(Self { library: self.library.clone(), handle })
    }

    pub(super) fn save(&self, config: &CStr) -> Result<Vec<u8>, Message> {
        let (mut len, mut out) = (0, ptr::null());
        // SAFETY: a live handle; on success `out` has `len` bytes until the next call, and they are copied.
        unsafe {
            self.library.check((self.library.0.booster_save)(
                self.handle,
                config.as_ptr(),
                &raw mut len,
                &raw mut out,
            ))?;
            Ok(std::slice::from_raw_parts(out.cast::<u8>(), len as usize).to_vec())
        }
    }

    pub(super) fn load(&self, bytes: &[u8]) -> Result<(), Message> {
        let data = bytes.as_ptr().cast::<c_void>();
        // SAFETY: a live handle and a buffer of the given length, read before the call returns.
        self.library.check(unsafe { (self.library.0.booster_load)(self.handle, data, length(bytes.len())) })
    }
}

impl Drop for Booster {
    fn drop(&mut self) {
        // SAFETY: the handle is live and owned; nothing uses it afterwards.
        unsafe { (self.library.0.booster_free)(self.handle) };
    }
}
