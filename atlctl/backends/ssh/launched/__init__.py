"""Jobs that were started on hosts: a supervisor on each, of which this side has only a record and questions."""
