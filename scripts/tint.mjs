// Compiles WGSL texts by Tint, on the null backend of Dawn (npm's package webgpu): no GPU is needed.
// usage: node tint.mjs CLASSES EXPECTED FOLDER...    CLASSES: ort_gpu_ep/device/classes.json; FOLDER: of *.wgsl texts, called as a class,
// or `units`: of kernels on matrix units, whose types and sizes Tint checks, and not what a driver offers
// Where the null backend has the class's limits (those of `minimum`), pipelines are made, too: that checks workgroup memory and bindings.
// EXPECTED: lines `CLASS/CASE: reason` of texts that Tint may refuse. Exit code 1 if it refuses another one, or none of such a line.
import { readdirSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { create, globals } from 'webgpu';

Object.assign(globalThis, globals);
const FEATURES = { 'shader-f16': 'shader-f16', subgroup: 'subgroups', 'timestamp-query': 'timestamp-query',
  'subgroup-matrix': 'chromium-experimental-subgroup-matrix' };
const [classesFile, expectedFile, ...folders] = process.argv.slice(2);
const classes = JSON.parse(readFileSync(classesFile, 'utf8'));
classes.units = { features: ['shader-f16', 'subgroup', 'subgroup-matrix'], limits: { maxComputeWorkgroupStorageSize: 49152 } };
const gpu = create(['backend=null', 'enable-dawn-features=allow_unsafe_apis']);
const expected = readFileSync(expectedFile, 'utf8').split('\n').filter(line => line && !line.startsWith('#'))
  .map(line => ({ key: line.split(': ')[0], line, met: false }));

function wanted(adapter, kind) {
  const limits = {};
  for (const [name, value] of Object.entries(kind.limits)) {
    const own = adapter.limits[name];
    if (own !== undefined) limits[name] = name.startsWith('min') ? Math.max(own, value) : Math.min(own, value);
  }
  const features = kind.features.map(name => FEATURES[name]).filter(name => name && adapter.features.has(name));
  const whole = Object.entries(limits).every(([name, value]) => value === kind.limits[name]);
  return { whole, descriptor: { requiredFeatures: features, requiredLimits: limits } };
}

// naga takes subgroups as they are, and refuses the line that WGSL asks for ("not yet supported", wgpu-native 29): Tint gets it here
const withEnable = code => (/\b(subgroup|quad)[A-Z]\w*\(/.test(code) ? `enable subgroups;\n${code}` : code);

async function refusal(device, text, whole) {
  const code = withEnable(text);
  device.pushErrorScope('validation');
  const module = device.createShaderModule({ code });
  const errors = (await module.getCompilationInfo()).messages.filter(message => message.type === 'error');
  if (!errors.length && whole) device.createComputePipeline({ layout: 'auto', compute: { module, entryPoint: 'main' } });
  const error = await device.popErrorScope();
  if (errors.length) return `line ${errors[0].lineNum}: ${errors[0].message.split('\n')[0]}`;
  return error ? error.message.split('\n')[0] : '';
}

let refused = 0;
for (const folder of folders) {
  const name = basename(folder), start = performance.now();
  const adapter = await gpu.requestAdapter();
  const { whole, descriptor } = wanted(adapter, classes[name]);
  const device = await adapter.requestDevice(descriptor);
  const files = readdirSync(folder).filter(file => file.endsWith('.wgsl')).sort();
  let passed = 0;
  for (const file of files) {
    const code = readFileSync(join(folder, file), 'utf8');
    const why = await refusal(device, code, whole);
    const label = `${name}/${code.split('\n')[0].replace(/^\/\/ /, '')}`;
    const line = why && expected.find(one => label === one.key);
    if (!why) passed++;
    else if (line) line.met = true;
    else { refused++; console.log(`${label} (${file}): ${why}`); }
  }
  console.log(`${name}: ${passed} of ${files.length} texts pass Tint, ${((performance.now() - start) / 1000).toFixed(1)} s`);
  device.destroy();
}
const unmet = expected.filter(one => !one.met);
for (const one of unmet) console.log(`expected, but Tint takes it: ${one.line}`);
process.exit(refused || unmet.length ? 1 : 0);
