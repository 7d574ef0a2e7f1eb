"""The intermediate representation: a read-only graph, its types, its sizes, and what the operators' schemas say."""
