"""Tables of a study, a file for each family of tables: a function takes a `View` and returns a `render.Table`."""
