"""Common English words, short enough that most tokenizers have each, with the space before it, as one token.

A server's own count says which of them are (`backends.http.counting`); prompts are made of those.
"""

from __future__ import annotations

_TEXT = """
able about above act add again age ago agree air all allow alone along already also always among amount and animal
another answer any appear apple area arm army around arrive art ask attack aunt autumn away baby back bad bag
ball bank bar base basic bath beach bear beat became because become bed been before began begin behind being believe
bell below best better between beyond big bird bit black blood blow blue board boat body book born both bottom bought
box boy branch bread break bridge bright bring broad broken brother brought brown build burn bus business but buy call
came camp can capital car card care carry case cat catch cause cell center century certain chain chair chance change
chapter charge cheap check chief child children choice choose church circle city class clean clear climb clock close
cloth cloud coast coat coffee cold collect college color come common company complete consider contain control cook
cool copy corn corner cost could count country couple course court cover cow create cross crowd cry culture current
cut daily dance dark data date daughter day dead deal dear death decide deep degree design desk did die dinner direct
discuss distance divide doctor does dog dollar done door double doubt down draw dream dress drink drive drop dry
during dust duty each early earth east easy eat edge effect egg eight either electric else empty end enemy energy
engine enjoy enough enter equal escape even evening event ever every exact example except exchange exercise expect
explain express eye face fact fail fair fall family famous far farm farmer fast father fear feed feel feet fell felt
few field fight figure fill film final find fine finger finish fire first fish five fix flat flight floor flow flower
fly follow food foot for force foreign forest forget form forward found four free fresh friend from front fruit full
fun future game garden gas gate gave general gentle get girl give glad glass goal god gold gone good got govern grand
grass great green grew ground group grow guess guest guide gun hair half hall hand happen happy hard has hat have head
health hear heard heart heat heavy held help her here high hill him his history hit hold hole home hope horse hospital
hot hotel hour house how huge human hundred hunt hurry husband ice idea image imagine inch include increase indeed
industry inside instead interest into iron island issue item join joint judge jump just keep kept key kill kind king
kitchen knew knife know lady lake land language large last late laugh law lay lead leader learn least leave led left
leg length less lesson let letter level lie life lift light like limit line list listen little live local long look
lose loss lost lot loud love low luck lunch machine made mail main major make man manner many map march mark market
master match material matter may mean measure meat medical meet member memory men mention message metal method middle
might mile milk million mind mine minute miss mix model modern moment money month moon more morning most mother motion
mountain mouth move much music must name narrow nation nature near nearly neck need never new news next night nine
noise none normal north nose note nothing notice now number object ocean off offer office officer often oil old once
one only open opinion order other our out outside over own page pain paint pair paper parent park part party pass past
path pattern pay peace people perhaps period person picture piece place plain plan plane plant plate play please
plenty point police poor popular position possible post pound power practice prepare present press pretty price print
private problem process produce program promise proper protect prove provide public pull purpose push put quality
quarter queen question quick quiet quite race radio rain raise range rate rather reach read ready real reason receive
record red region remain remember repeat reply report require rest result return rich ride right ring rise river road
rock roll roof room root rose round row rule run safe said sail salt same sand save saw say scale school science score
sea search season seat second secret section see seed seem seen self sell send sense sent separate serve set settle
seven several shade shall shape share sharp she ship shirt shoe shop shore short shot should shoulder shout show shut
sick side sight sign silent silver similar simple since sing single sister sit site six size skill skin sky sleep slip
slow small smell smile smoke smooth snow social soft soil soldier some son song soon sort sound source south space
speak special speech speed spend spirit spoke spot spread spring square stage stand star start state station stay
steel step stick still stone stood stop store storm story straight strange stream street strength stretch strong
student study subject success such sudden sugar suggest suit summer sun supply support sure surface surprise sweet
system table tail take talk tall taste taught tax teach teacher team tell ten term test than thank that the their them
then there these they thick thin thing think third this those though thought thousand three through throw thus time
tiny tired title today together told tomorrow tone too took top total touch toward town trade train travel tree trial
trip trouble truck true trust truth try turn twelve twenty two type under union unit until upon use usual valley value
various very view village visit voice wait walk wall want war warm was wash watch water wave way wear weather week
weight well went were west what wheel when where whether which while white who whole whose why wide wife wild will
wind window wine wing winter wire wish with within without woman women wonder wood word wore work world worth would
write wrong wrote yard year yellow yes yet you young your youth
"""
WORDS = tuple(_TEXT.split())
