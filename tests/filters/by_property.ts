// Lets a message through if it has the property region with the value eu. AssemblyScript, without its runtime:
//
// npx asc by_property.ts -O --runtime stub --use abort= --outFile by_property.wasm

const WANTED = String.UTF8.encode("region\u0001eu\u0002");
const room = memory.data(262144);

export function raftmq_allocate(size: i32): usize {
  return size <= 262144 ? room : 0;
}

export function raftmq_filter(at: usize, size: i32, body: usize, body_size: i32): i32 {
  const end = at + size;
  const wanted = changetype<usize>(WANTED);
  const length = WANTED.byteLength;
  while (at + length <= end) {
    if (memory.compare(at, wanted, length) == 0) return 1;
    while (at < end && load<u8>(at++) != 2) {}
  }
  return 0;
}
