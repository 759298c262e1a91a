"""Documents to tokenize: 24 languages, code, emoji, white space, characters drawn at random. Always the same for a seed and a machine."""
import gettext
import itertools
import os
import pathlib
import random
import unicodedata

ROOT = pathlib.Path(__file__).resolve().parents[3]

# The first article of the Universal Declaration of Human Rights.
ARTICLE = {
    "english": "All human beings are born free and equal in dignity and rights. They are endowed with reason and conscience and should act towards one another in a spirit of brotherhood.",
    "german": "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit Vernunft und Gewissen begabt und sollen einander im Geist der Brüderlichkeit begegnen.",
    "french": "Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués de raison et de conscience et doivent agir les uns envers les autres dans un esprit de fraternité.",
    "spanish": "Todos los seres humanos nacen libres e iguales en dignidad y derechos y, dotados como están de razón y conciencia, deben comportarse fraternalmente los unos con los otros.",
    "portuguese": "Todos os seres humanos nascem livres e iguais em dignidade e em direitos. Dotados de razão e de consciência, devem agir uns para com os outros em espírito de fraternidade.",
    "italian": "Tutti gli esseri umani nascono liberi ed eguali in dignità e diritti. Essi sono dotati di ragione e di coscienza e devono agire gli uni verso gli altri in spirito di fratellanza.",
    "polish": "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw. Są oni obdarzeni rozumem i sumieniem i powinni postępować wobec innych w duchu braterstwa.",
    "czech": "Všichni lidé rodí se svobodní a sobě rovní co do důstojnosti a práv. Jsou nadáni rozumem a svědomím a mají spolu jednat v duchu bratrství.",
    "turkish": "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar. Akıl ve vicdana sahiptirler ve birbirlerine karşı kardeşlik zihniyeti ile hareket etmelidirler.",
    "vietnamese": "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi. Mọi con người đều được tạo hoá ban cho lý trí và lương tâm và cần phải đối xử với nhau trong tình bằng hữu.",
    "russian": "Все люди рождаются свободными и равными в своем достоинстве и правах. Они наделены разумом и совестью и должны поступать в отношении друг друга в духе братства.",
    "ukrainian": "Всі люди народжуються вільними і рівними у своїй гідності та правах. Вони наділені розумом і совістю і повинні діяти у відношенні один до одного в дусі братерства.",
    "greek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα. Είναι προικισμένοι με λογική και συνείδηση, και οφείλουν να συμπεριφέρονται μεταξύ τους με πνεύμα αδελφοσύνης.",
    "hebrew": "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם. כולם חוננו בתבונה ובמצפון, לפיכך חובה עליהם לנהוג איש ברעהו ברוח של אחווה.",
    "arabic": "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق. وقد وهبوا عقلا وضميرا وعليهم أن يعامل بعضهم بعضا بروح الإخاء.",
    "persian": "تمام افراد بشر آزاد به دنیا می‌آیند و از لحاظ حیثیت و حقوق با هم برابرند. همه دارای عقل و وجدان هستند و باید نسبت به یکدیگر با روح برادری رفتار کنند.",
    "hindi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है। उन्हें बुद्धि और अन्तरात्मा की देन प्राप्त है और परस्पर उन्हें भाईचारे के भाव से बर्ताव करना चाहिए।",
    "bengali": "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে। তাঁদের বিবেক এবং বুদ্ধি আছে; সুতরাং সকলেরই একে অপরের প্রতি ভ্রাতৃত্বসুলভ মনোভাব নিয়ে আচরণ করা উচিত।",
    "tamil": "மனிதப் பிறவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்; அவர்கள் மதிப்பிலும், உரிமைகளிலும் சமமானவர்கள், அவர்கள் நியாயத்தையும் மனச்சாட்சியையும் இயற்பண்பாகப் பெற்றவர்கள்.",
    "thai": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ต่างมีเหตุผลและมโนธรรม และควรปฏิบัติต่อกันด้วยเจตนารมณ์แห่งภราดรภาพ",
    "chinese": "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。",
    "japanese": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。人間は、理性と良心とを授けられており、互いに同胞の精神をもって行動しなければならない。",
    "korean": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 인간은 천부적으로 이성과 양심을 부여받았으며 서로 형제애의 정신으로 행동하여야 한다.",
    "amharic": "የሰው ልጅ ሁሉ ሲወለድ ነጻና በክብርና በመብትም እኩልነት ያለው ነው። የተፈጥሮ ማስተዋልና ሕሊና ስላለው አንዱ ሌላውን በወንድማማችነት መንፈስ መመልከት ይገባዋል።",
}

EDGES = [
    "", " ", "  ", "a", " a", "a ", "\n", "\r\n\r\n", "\t\t x", "a  b   c    d", "x\n\n\n  y \n z", " \u00a0\u2003\u3000 wide \u0085\u180e\ufeff spaces\u200b",
    "I'm you're he'd we'll they've it's DON'T 'S 'LL '\u017f o'clock ''''", "1 12 123 1234 12345678901234567890 ½ ² ٣٤٥ Ⅷ 一二三 1.5e-10 0x1F",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪🇫🇷 ☺️ 🧑🏿‍🚀 ❤️‍🔥 \U0001f9d1\u200d\U0001f4bb 👨👩 😀😃😄", "e\u0301 \u00e9 n\u0303 A\u030a \u212b \u1e9b\u0323 q\u0307\u0323 \uac00 \u1100\u1161 \u0958 ﬁ ① ㌀",
    "<|endoftext|><|endoftext|> a<|im_start|>user\nhi<|im_end|> <s>a</s> <unk> <0x41> <|begin_of_text|>x", "NUL \0 in \0\0 a text\0",
    "supercalifragilisticexpialidocious" * 20, "ab" * 400, "=" * 300 + "\n" + "-" * 77 + "#" * 33 + "/*" * 40, " " * 700 + "x" + "\n" * 90 + "\t" * 50,
    "ﷺﷺﷺ\u202eabc\u202c \ufffd \U0010ffff \ue000 \u0000", "ＡＢＣ　ａｂｃ １２３ ｶﾞ", "https://example.org/a?b=c&d=%20#e user@example.com C:\\Windows\\x.dll",
]


def words(rng, text):
    """Its words in another order: a language's characters, and many new words in a row."""
    split = text.split(" ")
    rng.shuffle(split)
    return " ".join(split)


def sources(patterns, most=None):
    for pattern in patterns:
        for path in sorted(ROOT.glob(pattern))[:most]:
            yield path.read_text(encoding="utf-8", errors="ignore")


def is_settled(c):
    """Is it a character of Unicode 14, which PCRE2 10.42 has, and has what normalizing makes of it not changed since Unicode 3.2? The crate by
    which Hugging Face normalizes does not know newer compatibility characters and combining marks."""
    old = unicodedata.ucd_3_2_0
    return (unicodedata.category(c) != "Cn" and unicodedata.combining(c) == old.combining(c)
            and unicodedata.normalize("NFKC", c) == old.normalize("NFKC", c))


def draw(rng, low, high):
    while True:
        c = chr(rng.randrange(low, high))
        if is_settled(c):
            return c


def random_text(rng):
    """Of one of a few blocks of Unicode."""
    blocks = [(0x20, 0x7f), (0x80, 0x250), (0x250, 0x370), (0x370, 0x530), (0x530, 0x700), (0x900, 0xe00), (0xe00, 0x1100), (0x1100, 0x1400),
              (0x1e00, 0x2100), (0x2100, 0x2c00), (0x3000, 0x3400), (0x4e00, 0x9fff), (0xac00, 0xd7a4), (0x1f300, 0x1fa00), (0x10000, 0x10400)]
    low, high = rng.choice(blocks)
    glue = rng.choice(["", " ", "\n", "'", "1"])
    return glue.join("".join(draw(rng, low, high) for _ in range(rng.randrange(1, 12))) for _ in range(rng.randrange(1, 60)))


def catalogs():
    """Messages of programs in the languages that are installed here."""
    for path in sorted(pathlib.Path("/usr/share/locale").glob("*/LC_MESSAGES/*.mo")):
        try:
            with open(path, "rb") as file:
                messages = gettext.GNUTranslations(file)._catalog.values()
        except (OSError, ValueError, IndexError):
            continue
        yield "\n".join(str(m) for m in messages if m)


def small():
    """About 70 KB, of this tree alone: what the committed golden ids are of."""
    rng = random.Random(1)
    yield from EDGES
    for text in ARTICLE.values():
        yield text
        yield words(rng, text)
    yield from ("".join(t)[:3000] for t in sources(["tests/golden/tokenizer/plugin.py", "LICENSE", "include/heddle/tokenizer.h", ".clang-format"]))
    for _ in range(60):
        yield random_text(rng)


def large(megabytes):
    """Documents of so many megabytes in all, of what this machine has: catalogs in its languages, this tree, Python's library."""
    rng = random.Random(2)
    left = megabytes * 10**6
    library = pathlib.Path(os.__file__).parent
    code = itertools.chain(sources(["docs/**/*.md", "core/**/*.c", "plugins/**/*.c"]), (p.read_text(encoding="utf-8", errors="ignore") for p in sorted(library.glob("*.py"))))
    messages = list(catalogs())
    rng.shuffle(messages)
    kinds = [iter(EDGES), code, iter(messages), (random_text(rng) for _ in itertools.count()),
             ("\n".join(words(rng, text) for text in rng.sample(list(ARTICLE.values()), 8)) for _ in itertools.count())]
    for kind in itertools.cycle(kinds):
        text = next(kind, "")
        yield text
        left -= len(text.encode())
        if left <= 0:
            return
