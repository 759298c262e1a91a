// Runs the engine of Perfetto's UI, a web worker with the trace processor in WebAssembly, under node: `node perfetto.mjs FOLDER`, of
// engine_bundle.js and trace_processor.wasm. What the UI would post to it comes on stdin, replies go to stdout: TraceProcessorRpcStream.
import console from 'node:console';
import fs from 'node:fs';

const folder = process.argv[2];
const port = {postMessage: (reply) => process.stdout.write(reply)};
// What the bundle sees under these names: as in a worker, without `process`, whose presence it refuses, and with a log that is not stdout.
const globals = {
  self: {location: {href: 'file:///'}},
  WorkerGlobalScope: class {},
  XMLHttpRequest: class {
    open(method, name) { this.response = new Uint8Array(fs.readFileSync(`${folder}/${name}`)); }
    send() {}
  },
  process: undefined,
  console: new console.Console(process.stderr),
};
new Function(...Object.keys(globals), fs.readFileSync(`${folder}/engine_bundle.js`, 'utf8'))(...Object.values(globals));
globals.self.onmessage({data: port});
process.stdin.on('data', (bytes) => port.onmessage({data: new Uint8Array(bytes)}));
