COMPILED_FROM: str

def merged_entries(
    entries: list[bytes], queue_ids: list[int], wholes: list[bool], bytes_max: int, limit_pos: int
) -> tuple[list[int], bytes, bytes, bytes, bytes]: ...
