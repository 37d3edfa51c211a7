# Part of _native.pyx: a batch's records taken piece by piece, as objects or into columns.

cdef extern from *:
    """
    #include <structmember.h>
    /* Where a slot lies in its objects, -1 when it is not a plain slot of exactly one object. */
    static Py_ssize_t moldau_slot_at(PyObject *slot) {
        PyMemberDef *member;
        if (!PyObject_TypeCheck(slot, &PyMemberDescr_Type)) {
            return -1;
        }
        member = ((PyMemberDescrObject *)slot)->d_member;
        return member->type == T_OBJECT_EX ? member->offset : -1;
    }
    /* Fill a slot of an object that has no other reference yet; takes over the reference to the value. */
    static void moldau_fill(PyObject *target, Py_ssize_t at, PyObject *value) {
        Py_INCREF(value);
        *(PyObject **)((char *)target + at) = value;
    }
    """
    Py_ssize_t moldau_slot_at(object slot)
    void moldau_fill(object target, Py_ssize_t at, object value)

cdef extern from "Python.h":
    void PyObject_GC_UnTrack(void *target)
    bint PyObject_IS_GC(object target)
    Py_ssize_t PY_SSIZE_T_MAX

cdef enum:
    MAX_SHARED = 16
    PER_RECORD = 5


cdef class RecordMaker:
    """See `cursor_pure.RecordMaker`."""

    cdef object kind
    cdef Py_ssize_t places[PER_RECORD]
    cdef int shared_count
    cdef Py_ssize_t shared_places[MAX_SHARED]
    cdef tuple shared

    def __cinit__(self, kind, shared):
        cdef int index
        cdef tuple slots = check_slots(kind, shared)
        if len(slots) > MAX_SHARED + PER_RECORD:
            raise TypeError(f"{kind.__name__} has more slots than {MAX_SHARED + PER_RECORD}")
        self.kind = kind
        for index, name in enumerate(RECORD_SLOTS):
            self.places[index] = self._place(name)
        self.shared = tuple(shared.values())
        self.shared_count = len(shared)
        for index, name in enumerate(shared):
            self.shared_places[index] = self._place(name)

    cdef Py_ssize_t _place(self, name) except -1:
        cdef Py_ssize_t at = moldau_slot_at(getattr(self.kind, name))
        if at < 0:
            raise TypeError(f"{self.kind.__name__}.{name} is not a plain slot")
        return at

    cdef inline object make(
        self, const uint8_t *data, Span *span, int64_t offset, int64_t timestamp_ms
    ):
        cdef object record = moldau_allocate(self.kind)
        cdef int index
        moldau_fill(record, self.places[0], offset)
        moldau_fill(record, self.places[1], timestamp_ms)
        moldau_fill(record, self.places[2], _bytes_at(data, span.key_at, span.key_size))
        moldau_fill(record, self.places[3], _bytes_at(data, span.value_at, span.value_size))
        moldau_fill(record, self.places[4], _headers_at(data, span) if span.header_count else ())
        for index in range(self.shared_count):
            moldau_fill(record, self.shared_places[index], <object>self.shared[index])
        # Bytes, numbers and texts refer to nothing: the collector need not look at the record.
        if PyObject_IS_GC(record):
            PyObject_GC_UnTrack(<void *>record)
        return record


cdef class RecordCursor:
    """See `cursor_pure.RecordCursor`."""

    cdef _Section section
    cdef int64_t next

    def __cinit__(
        self, section, record_count, base_offset, base_timestamp_ms, append_time_ms=None
    ):
        self.section = _Section(
            section, record_count, base_offset, base_timestamp_ms, append_time_ms
        )
        self.next = base_offset

    @property
    def remaining(self):
        return self.section.count - self.section.index

    @property
    def is_exhausted(self):
        cdef _Section section = self.section
        return section.index == section.count and section.position == section.view.len

    @property
    def next_offset(self):
        return self.next

    cdef int _check(self, int status, Py_ssize_t limit) except -1:
        cdef _Section section = self.section
        if status == MALFORMED:
            raise _malformed(section.index)
        if limit == section.count or status == EXHAUSTED:
            check_consumed(section.index, section.count, section.view.len - section.position)
        return 0

    def skip_before(self, int64_t offset):
        cdef _Section section = self.section
        cdef Py_ssize_t position
        cdef Span span
        cdef int status = OK
        while section.index < section.count:
            position = section.position
            status = _read_record(
                <const uint8_t *>section.view.buf,
                section.view.len,
                &position,
                section.base_timestamp_ms,
                &span,
            )
            if status != OK:
                break
            if section.base_offset + span.offset_delta >= offset:
                return
            section.position = position
            section.index += 1
            self.next = section.base_offset + span.offset_delta + 1
        self._check(status, section.count)

    def take(self, max_records, RecordMaker maker not None):
        cdef _Section section = self.section
        cdef const uint8_t *data = <const uint8_t *>section.view.buf
        cdef Py_ssize_t limit = min(max(max_records, 0), section.count - section.index)
        cdef Py_ssize_t position = section.position
        cdef Span span
        cdef int status = OK
        cdef list records = []
        cdef int64_t offset
        limit += section.index
        while section.index < limit:
            status = _read_record(
                data, section.view.len, &position, section.base_timestamp_ms, &span
            )
            if status != OK:
                break
            offset = section.base_offset + span.offset_delta
            records.append(
                maker.make(
                    data,
                    &span,
                    offset,
                    section.append_time_ms if section.has_append_time else span.timestamp_ms,
                )
            )
            section.position = position
            section.index += 1
            self.next = offset + 1
        if not records:
            self._check(status, limit)
        return records


def decode_cursors(cursors, max_records=None, value_memory_of=None):
    """See `cursor_pure.decode_cursors`."""
    cdef list held = []
    cdef list users = []
    cdef RecordCursor cursor
    cdef _Section section
    cdef Py_ssize_t rows = 0
    cdef Py_ssize_t bytes_left, index
    cdef Py_ssize_t total = 0
    cdef int64_t last
    cdef Py_ssize_t limit = PY_SSIZE_T_MAX if max_records is None else max(max_records, 0)
    cdef const uint8_t *raw
    for cursor in cursors:
        section = cursor.section
        bytes_left = section.view.len - section.position
        if total + bytes_left > INT32_MAX or (rows >= limit and held):
            break
        held.append(section)
        users.append(cursor)
        total += bytes_left
        rows += section.count - section.index
    rows = min(rows, limit)
    fault, columns = _decode_held(
        held, rows, total, None if value_memory_of is None else value_memory_of(total)
    )
    if fault is not None and columns[0] == 0:
        raise fault[1]
    counts = [section.taken for section in held]
    offsets = <bytearray>columns[1]
    raw = <const uint8_t *>PyByteArray_AS_STRING(offsets)
    index = 0
    for number in range(len(users)):
        cursor = users[number]
        index += <Py_ssize_t>counts[number]
        if counts[number]:
            memcpy(&last, raw + 8 * (index - 1), 8)
            cursor.next = last + 1
    counts += [0] * (len(cursors) - len(counts))
    return counts, columns
