# C types of mqtt/topic_trie.py. Nodes and entries become structs without a dict; measured by bench/trie.py.
cimport cython


@cython.final
cdef class Entries:
    cdef public object key
    cdef public object value
    cdef public dict many


@cython.final
cdef class Node:
    cdef public dict children
    cdef public Node single_level
    cdef public Entries here
    cdef public Entries multi_level
    cdef public dict weights
    cdef public unsigned int visits
    cdef public unsigned int heaviest


cdef class TopicTrie:
    cdef dict _concrete
    cdef Node _root
    cdef Py_ssize_t _size

    @cython.locals(entries=Entries, node=Node, multi_level=bint)
    cpdef bint add(self, str topic_filter, object key, object value) except *
    @cython.locals(entries=Entries, node=Node, path=list, multi_level=bint)
    cpdef bint remove(self, str topic_filter, object key) except *
    @cython.locals(entries=Entries)
    cpdef object get(self, str topic_filter, object key)
    @cython.locals(
        entries=Entries, node=Node, child=Node, first=Node, beside=Node, found=list, levels=list, nodes=list, depths=list,
        depth=Py_ssize_t, position=Py_ssize_t)
    cpdef list match(self, str topic)
    cpdef Py_ssize_t visits(self) except -1
    @cython.locals(
        node=Node, child=Node, path=list, levels=list, count=Py_ssize_t, position=Py_ssize_t, at=Py_ssize_t,
        before=Py_ssize_t, after=Py_ssize_t, grown=Py_ssize_t)
    cpdef Py_ssize_t visits_with(self, str topic_filter) except -1
    @cython.locals(node=Node)
    cdef list _wildcard_filters(self)
    @cython.locals(node=Node, child=Node, path=list, levels=list, level=str, old=Py_ssize_t)
    cdef Node _make_node(self, str topic_filter)
    @cython.locals(parent=Node, node=Node, position=Py_ssize_t, before=Py_ssize_t, visits=Py_ssize_t)
    cdef _weigh(self, list path, list levels, Py_ssize_t old)
    @cython.locals(child=Node, path=list, level=str)
    cdef list _path(self, str topic_filter)
    @cython.locals(node=Node, path=list)
    cdef Entries _find(self, str topic_filter)
    @cython.locals(
        node=Node, parent=Node, position=Py_ssize_t, level=str, before=Py_ssize_t, after=Py_ssize_t, visits=Py_ssize_t)
    cdef _prune(self, list path, list levels)


cdef Node _child(Node node, str level)
@cython.locals(heaviest=Py_ssize_t)
cdef int _changed(Node parent, str level, Py_ssize_t before, Py_ssize_t after) except -1
@cython.locals(children=dict, weights=dict, child=Node, left=Py_ssize_t)
cdef int _count_weights(Node parent, Py_ssize_t before, Py_ssize_t after) except -1
@cython.locals(child=Node, heaviest=Py_ssize_t)
cdef Py_ssize_t _heaviest(Node parent) except -1


@cython.locals(many=dict)
cdef Py_ssize_t _put(Entries entries, object key, object value) except -1
cdef bint _holds(Entries entries, object key) except -1
@cython.locals(many=dict)
cdef bint _discard(Entries entries, object key) except -1
cdef int _collect(Entries entries, list found) except -1
