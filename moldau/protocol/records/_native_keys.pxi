# Part of _native.pyx: a table of the newest offset of each key, for log compaction. The table is the
# caller's bytearray of 24-byte slots (two words of the key's hash, offset + 1; 0: free), as
# `moldau.storage.cleaner.offset_map` describes it. Rows are columns as `decode_columns` makes them;
# what they say is checked where it is used.

cdef enum:
    SLOT_WORDS = 3
    DROP = 0
    KEEP = 1
    KEEP_TOMBSTONE = 2


cdef struct Table:
    uint64_t *words
    uint64_t slot_count
    uint64_t seed_low
    uint64_t seed_high


cdef inline uint64_t _rotated(uint64_t value, int count) noexcept nogil:
    return (value << count) | (value >> (64 - count))


cdef inline void _mix(uint64_t *v) noexcept nogil:
    """One SipHash round."""
    v[0] += v[1]
    v[2] += v[3]
    v[1] = _rotated(v[1], 13) ^ v[0]
    v[3] = _rotated(v[3], 16) ^ v[2]
    v[0] = _rotated(v[0], 32)
    v[2] += v[1]
    v[0] += v[3]
    v[1] = _rotated(v[1], 17) ^ v[2]
    v[3] = _rotated(v[3], 21) ^ v[0]
    v[2] = _rotated(v[2], 32)


cdef inline void _hash(
    const uint8_t *data, Py_ssize_t size, uint64_t seed_low, uint64_t seed_high, uint64_t *digest
) noexcept nogil:
    """SipHash-2-4 with 128 bits of result (Aumasson, Bernstein 2012)."""
    cdef uint64_t v[4]
    cdef uint64_t word
    cdef Py_ssize_t at = 0
    cdef int rest
    v[0] = <uint64_t>0x736F6D6570736575 ^ seed_low
    v[1] = <uint64_t>0x646F72616E646F6D ^ seed_high ^ <uint64_t>0xEE
    v[2] = <uint64_t>0x6C7967656E657261 ^ seed_low
    v[3] = <uint64_t>0x7465646279746573 ^ seed_high
    while at + 8 <= size:
        memcpy(&word, data + at, 8)
        v[3] ^= word
        _mix(v)
        _mix(v)
        v[0] ^= word
        at += 8
    word = (<uint64_t>(size & 0xFF)) << 56
    for rest in range(<int>(size - at)):
        word |= (<uint64_t>data[at + rest]) << (8 * rest)
    v[3] ^= word
    _mix(v)
    _mix(v)
    v[0] ^= word
    v[2] ^= <uint64_t>0xEE
    for rest in range(4):
        _mix(v)
    digest[0] = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= <uint64_t>0xDD
    for rest in range(4):
        _mix(v)
    digest[1] = v[0] ^ v[1] ^ v[2] ^ v[3]


cdef inline uint64_t *_slot_of(Table *table, const uint8_t *key, Py_ssize_t size) noexcept nogil:
    """The key's slot, or the free one where it belongs, its hash written there; there is one."""
    cdef uint64_t digest[2]
    cdef uint64_t slot, step, visited
    cdef uint64_t *words = table.words
    _hash(key, size, table.seed_low, table.seed_high, digest)
    slot = digest[0] % table.slot_count
    step = 1 + digest[1] % (table.slot_count - 1)
    for visited in range(table.slot_count):
        words = table.words + SLOT_WORDS * slot
        if words[2] == 0:
            words[0] = digest[0]
            words[1] = digest[1]
            return words
        if words[0] == digest[0] and words[1] == digest[1]:
            return words
        slot += step
        if slot >= table.slot_count:
            slot -= table.slot_count
    return NULL


cdef Table _table(bytearray table, bytes seed) except *:
    cdef Table opened
    opened.slot_count = <uint64_t>(PyByteArray_GET_SIZE(table) // (8 * SLOT_WORDS))
    if opened.slot_count < 3 or PyBytes_GET_SIZE(seed) != 16:
        raise ValueError("a key table has at least three slots and a seed of 16 bytes")
    opened.words = <uint64_t *>PyByteArray_AS_STRING(table)
    memcpy(&opened.seed_low, PyBytes_AS_STRING(seed), 8)
    memcpy(&opened.seed_high, PyBytes_AS_STRING(seed) + 8, 8)
    return opened


cdef Strings _strings(_Flat ends, _Flat validity, _Flat data):
    cdef Strings strings
    strings.ends = _flat(ends)
    strings.validity = _flat(validity)
    strings.data = _flat(data)
    return strings


cdef inline int64_t _int64_at(Flat *flat, int64_t index) noexcept nogil:
    cdef int64_t value
    memcpy(&value, flat.data + 8 * index, 8)
    return value


def put_keys(
    bytearray table, bytes seed, Py_ssize_t count, Py_ssize_t limit, keys, offsets,
    int64_t first_offset,
):
    """Note the rows from `first_offset` on, up to the first new key that finds `limit` keys there.

    Returns (rows taken in, keys in the table). Raises: ValueError on columns that contradict
    themselves.
    """
    cdef Table opened = _table(table, seed)
    cdef _Flat key_ends = _Flat(keys[0])
    cdef _Flat key_validity = _Flat(keys[1])
    cdef _Flat key_data = _Flat(keys[2])
    cdef _Flat row_offsets = _Flat(offsets)
    cdef Strings strings = _strings(key_ends, key_validity, key_data)
    cdef Flat offset_column = _flat(row_offsets)
    cdef int64_t row = 0
    cdef int64_t row_count = offset_column.size // 8
    cdef int64_t offset, size
    cdef const uint8_t *data
    cdef uint64_t *slot
    cdef int status = OK
    limit = min(limit, <Py_ssize_t>opened.slot_count - 1)
    with nogil:
        while row < row_count:
            offset = _int64_at(&offset_column, row)
            status = _string_at(&strings, row, &data, &size)
            if status != OK:
                break
            if size >= 0 and offset >= first_offset:
                slot = _slot_of(&opened, data, size)
                if slot == NULL:
                    break
                if slot[2] == 0:
                    if count >= limit:
                        break
                    count += 1
                slot[2] = <uint64_t>(offset + 1)
            row += 1
    if status != OK:
        raise ValueError(f"row {row}: offsets outside the column's buffers")
    return row, count


def judge_keys(
    bytearray table, bytes seed, keys, offsets, value_validity, int64_t latest_offset
):
    """For each row whether it is the newest of its key: see `OffsetMap.judge`.

    Raises: ValueError on columns that contradict themselves.
    """
    cdef Table opened = _table(table, seed)
    cdef _Flat key_ends = _Flat(keys[0])
    cdef _Flat key_validity = _Flat(keys[1])
    cdef _Flat key_data = _Flat(keys[2])
    cdef _Flat row_offsets = _Flat(offsets)
    cdef _Flat values = _Flat(value_validity)
    cdef Strings strings = _strings(key_ends, key_validity, key_data)
    cdef Flat offset_column = _flat(row_offsets)
    cdef Flat value_column = _flat(values)
    cdef int64_t row = 0
    cdef int64_t row_count = offset_column.size // 8
    cdef int64_t offset, size
    cdef const uint8_t *data
    cdef uint64_t *slot
    cdef int status = OK
    cdef bytearray verdict = bytearray(row_count)
    cdef uint8_t *out = <uint8_t *>PyByteArray_AS_STRING(verdict)
    if value_column.data != NULL and value_column.size < (row_count + 7) // 8:
        raise ValueError("a validity bitmap shorter than its column")
    with nogil:
        while row < row_count:
            offset = _int64_at(&offset_column, row)
            status = _string_at(&strings, row, &data, &size)
            if status != OK:
                break
            out[row] = KEEP
            if offset <= latest_offset:
                if size < 0:
                    out[row] = DROP
                else:
                    slot = _slot_of(&opened, data, size)
                    if slot != NULL and slot[2] > <uint64_t>(offset + 1):
                        out[row] = DROP
            if (
                out[row] == KEEP
                and value_column.data != NULL
                and not value_column.data[row >> 3] >> (row & 7) & 1
            ):
                out[row] = KEEP_TOMBSTONE
            row += 1
    if status != OK:
        raise ValueError(f"row {row}: offsets outside the column's buffers")
    return verdict


def find_key(bytearray table, bytes seed, bytes key):
    """The key's newest offset, -1 when it is not there."""
    cdef Table opened = _table(table, seed)
    cdef uint64_t *slot = _slot_of(
        &opened, <const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
    )
    return -1 if slot == NULL else <int64_t>slot[2] - 1


def hash_key(bytes seed, bytes key):
    """The 128 bits by which the table knows a key."""
    cdef uint64_t digest[2]
    cdef uint64_t low, high
    if PyBytes_GET_SIZE(seed) != 16:
        raise ValueError("a seed has 16 bytes")
    memcpy(&low, PyBytes_AS_STRING(seed), 8)
    memcpy(&high, PyBytes_AS_STRING(seed) + 8, 8)
    _hash(<const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), low, high, digest)
    return PyBytes_FromStringAndSize(<const char *>digest, 16)
