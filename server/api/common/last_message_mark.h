// Prompts that end where the last message's content does, for answers that go on with it: whatever
// a template writes behind a message is cut off. The place is found by a mark behind the content,
// not by the content, which may stand elsewhere as well, also in what the template writes ("<").
#pragma once

#include "engine/base/json_text.h"
#include "engine/text/tokenizer.h"

namespace lockstep {

// Before the template is rendered: the mark behind the content of a message, which is a string.
void mark_content_end(Json& message);

// Afterwards: the text up to the mark, without white space before it where the template trims what
// it is given. False if there is no mark: the template has not written the content's end. The work
// is linear in the text.
bool cut_at_mark(TracedText& prompt);

}  // namespace lockstep
