// Vocabularies small enough to reckon with by hand.
#pragma once

#include <string>
#include <string_view>

#include "engine/text/tokenizer.h"

namespace lockstep {

// Adds a token, its type and (where the vocabulary has scores) its score; returns its id.
TokenId add_token(TokenizerData& data, std::string text, TokenType type = TokenType::kNormal,
                  float score = 0);

// A SentencePiece-style vocabulary: <unk>, <s>, </s>, the 256 bytes (ids 3 to 258), some letters,
// "▁", and a few merged tokens.
TokenizerData small_sentence_piece();

// A byte-level vocabulary with the pre-tokenizer `pre`: the 256 bytes (ids 0 to 255, in the order
// of the bytes), a few merged tokens, and the control tokens <|begin|>, <|endoftext|>, <|im_end|>.
TokenizerData small_byte_pair(std::string_view pre = "gpt-2");

// A vocabulary of Gemma 4's kind: <pad>, <eos>, <bos>, <unk>, the 256 bytes (ids 4 to 259),
// letters, "▁", merged tokens with their merges, and the control tokens <|turn> and <turn|>.
TokenizerData small_character_pair();

// A WordPiece vocabulary: [PAD], [UNK], [CLS], [SEP], words and their parts. Control characters,
// accents and case are left out of texts.
TokenizerData small_word_piece();

// A vocabulary of unigrams: <pad>, </s>, <unk>, the 256 bytes or none, words, parts and letters.
TokenizerData small_unigram(bool with_bytes);

// A vocabulary of PLaMo 2's kind: its control tokens, the 256 bytes (ids 3 to 258), words, parts
// and letters.
TokenizerData small_plamo();

// The character that stands for a byte in a byte-level vocabulary.
std::string byte_level_character(unsigned byte);

}  // namespace lockstep
