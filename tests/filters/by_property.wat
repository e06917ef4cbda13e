;; Lets a message through if it has the property region with the value eu.
(module
  (memory (export "memory") 1)
  (data (i32.const 0) "region\01eu\02")
  ;; Messages are written behind the first page; its beginning is ours.
  (global $end (mut i32) (i32.const 65536))
  (func (export "raftmq_allocate") (param $size i32) (result i32)
    (local $address i32)
    (local.set $address (global.get $end))
    (if (i32.eq (i32.const -1)
          (memory.grow (i32.shr_u (i32.add (local.get $size) (i32.const 65535)) (i32.const 16))))
      (then (return (i32.const 0))))
    (global.set $end (i32.shl (memory.size) (i32.const 16)))
    (local.get $address))
  (func (export "raftmq_filter")
    (param $at i32) (param $size i32) (param $body i32) (param $body_size i32) (result i32)
    (local $end i32) (local $same i32)
    (local.set $end (i32.add (local.get $at) (local.get $size)))
    (block $missing
      (loop $property
        (br_if $missing (i32.gt_u (i32.add (local.get $at) (i32.const 10)) (local.get $end)))
        (local.set $same (i32.const 0))
        (block $other
          (loop $byte
            (br_if $other (i32.ne
              (i32.load8_u (local.get $same))
              (i32.load8_u (i32.add (local.get $at) (local.get $same)))))
            (local.set $same (i32.add (local.get $same) (i32.const 1)))
            (br_if $byte (i32.lt_u (local.get $same) (i32.const 10))))
          (return (i32.const 1)))
        ;; To the next property: behind the next byte 2.
        (loop $skip
          (local.set $at (i32.add (local.get $at) (i32.const 1)))
          (br_if $missing (i32.ge_u (local.get $at) (local.get $end)))
          (br_if $skip (i32.ne (i32.load8_u (i32.sub (local.get $at) (i32.const 1))) (i32.const 2))))
        (br $property)))
    (i32.const 0)))
