"""`/v1/responses`, OpenAI's Responses API: items in, items out, kept for a while.

    body            what clients send
    tool_kinds      the tools that it may list
    offered_tools   all of them, and which may be called
    text_config     how the text of the answer must look
    input_items     the items in it, and the conversation that they are
    response        what is sent back, whole
    output_items    the items in it
    events          the same in events
    output          the items of one answer, made piece by piece
    open_items      each of them while the model says them
    tokens_of_text  log-probabilities, given to the texts that they are of
    answer          from what the engine makes to items and events
    kept_items      items of conversations that are kept
    store           responses that were kept
    routes          the routes themselves

The older bodies, of completions and chats, are in `server/responses.py`.
"""
