// Runs one wasm32-wasip1 program under node, as cargo's runner: node run-wasi.mjs PROGRAM.wasm [ARG...].
//
// The same target that Envoy loads, with the machine's file system closed and no clock but WASI's. Tests
// that need files or threads have no place in core, so nothing else is passed in.
import { readFile } from "node:fs/promises";
import { WASI } from "node:wasi";

const [program, ...args] = process.argv.slice(2);
const wasi = new WASI({ version: "preview1", args: [program, ...args], env: process.env, returnOnExit: true });
const module = await WebAssembly.compile(await readFile(program));
const instance = await WebAssembly.instantiate(module, wasi.getImportObject());
process.exit(wasi.start(instance));
