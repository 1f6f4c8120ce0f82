"""What the command line does, for Python and notebooks: `import attnlab`, then `attnlab.train(…)`.

    call --calling--> the same code as the verb --> a result that shows itself

Every function takes settings as the command line does, "key=value", or as named arguments. A name
with dots is given as text or in a dictionary: "model.width=64", model={"width": 64}. `attnlab`
itself loads these names when they are used.
"""
