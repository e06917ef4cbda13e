"""Files of Protobuf for tests, as protoc compiles them."""

from __future__ import annotations

from google.protobuf import descriptor_pb2, text_format

# As protoc writes it for:
#   message Order {
#     message Line { string sku = 1; uint32 count = 2; }
#     int64 id = 1; string name = 2; uint64 serial = 3; bytes raw = 4; State state = 5; repeated Line lines = 6;
#     map<string, Line> by_name = 7; google.protobuf.Timestamp at = 8; google.protobuf.Int32Value points = 9;
#     oneof paid { string card = 10; bool cash = 11; } google.protobuf.Struct more = 12;
#     google.protobuf.Duration took = 13; optional double weight = 14; repeated int32 codes = 15; }
#   enum State { NEW = 0; PAID = 1; }
FILE = """
name: "orders.proto" package: "shop" syntax: "proto3"
dependency: "google/protobuf/timestamp.proto" dependency: "google/protobuf/wrappers.proto"
dependency: "google/protobuf/struct.proto" dependency: "google/protobuf/duration.proto"
enum_type { name: "State" value { name: "NEW" number: 0 } value { name: "PAID" number: 1 } }
message_type {
  name: "Order"
  field { name: "id" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL }
  field { name: "name" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "serial" number: 3 type: TYPE_UINT64 label: LABEL_OPTIONAL }
  field { name: "raw" number: 4 type: TYPE_BYTES label: LABEL_OPTIONAL }
  field { name: "state" number: 5 type: TYPE_ENUM type_name: ".shop.State" label: LABEL_OPTIONAL }
  field { name: "lines" number: 6 type: TYPE_MESSAGE type_name: ".shop.Order.Line" label: LABEL_REPEATED }
  field { name: "by_name" number: 7 type: TYPE_MESSAGE type_name: ".shop.Order.ByNameEntry" label: LABEL_REPEATED }
  field { name: "at" number: 8 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" label: LABEL_OPTIONAL }
  field { name: "points" number: 9 type: TYPE_MESSAGE type_name: ".google.protobuf.Int32Value" label: LABEL_OPTIONAL }
  field { name: "card" number: 10 type: TYPE_STRING label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "cash" number: 11 type: TYPE_BOOL label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "more" number: 12 type: TYPE_MESSAGE type_name: ".google.protobuf.Struct" label: LABEL_OPTIONAL }
  field { name: "took" number: 13 type: TYPE_MESSAGE type_name: ".google.protobuf.Duration" label: LABEL_OPTIONAL }
  field { name: "weight" number: 14 type: TYPE_DOUBLE label: LABEL_OPTIONAL oneof_index: 1 proto3_optional: true }
  field { name: "codes" number: 15 type: TYPE_INT32 label: LABEL_REPEATED }
  oneof_decl { name: "paid" } oneof_decl { name: "_weight" }
  nested_type {
    name: "Line"
    field { name: "sku" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "count" number: 2 type: TYPE_UINT32 label: LABEL_OPTIONAL }
  }
  nested_type {
    name: "ByNameEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".shop.Order.Line" label: LABEL_OPTIONAL }
  }
}
message_type {
  name: "Old"
  field { name: "id" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL }
}
message_type {
  name: "Node"
  field { name: "next" number: 1 type: TYPE_MESSAGE type_name: ".shop.Node" label: LABEL_OPTIONAL }
}
message_type { name: "Empty" }
message_type {
  name: "Cases"
  field { name: "a" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL json_name: "a" }
  field { name: "A" number: 2 type: TYPE_INT64 label: LABEL_OPTIONAL json_name: "a2" }
}
"""


def file_set(*files: str) -> bytes:
    """A set of descriptors from their text."""
    found = descriptor_pb2.FileDescriptorSet()
    for each in files:
        text_format.Parse(each, found.file.add())
    return found.SerializeToString()


SET = file_set(FILE)
