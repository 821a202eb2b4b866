# C types of storage/state/row_lists.py; measured by bench/storage_core.py.
cimport cython


@cython.locals(size=Py_ssize_t, weight=Py_ssize_t, most=Py_ssize_t, key=bytes, piece=list, pieces=list)
cpdef list cut(object writes, Py_ssize_t octets_max)
@cython.locals(size=Py_ssize_t, key=bytes)
cpdef Py_ssize_t octets_of(object rows) except -1
cpdef object add_to_overlay(dict overlay, object batch, object rows)
@cython.locals(known=tuple)
cpdef object take_from_overlay(dict overlay, object batch, object rows)
