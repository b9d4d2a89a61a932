// Runs one wasm32-wasip1 program under node, as cargo's runner: node run-wasi.mjs PROGRAM.wasm [ARG...].
//
// The same target that Envoy loads, with the machine's file system closed and no clock but WASI's. Tests
// that need files or threads have no place in core, so nothing else is passed in.
import { readFile } from "node:fs/promises";
import { WASI } from "node:wasi";

const [program, ...args] = process.argv.slice(2);
// Without returnOnExit the program's exit code ends the process at once. With it node 20 throws through the wasm frames,
// and after a long run crashes on that.
const wasi = new WASI({ version: "preview1", args: [program, ...args], env: process.env, returnOnExit: false });
const module = await WebAssembly.compile(await readFile(program));
const instance = await WebAssembly.instantiate(module, wasi.getImportObject());
process.exit(wasi.start(instance));
